from advnas import stores as weights


def addresses(search):
    return {name: parameter.data_ptr() for name, parameter in search.model.named_parameters()}


def test_only_drawn_candidates_leave_their_homes_and_all_return(lab):
    search = lab.search_with(weights.Host())
    backings, seen = addresses(search), []

    def spy(model):
        seen.append({name for name, address in addresses(search).items() if address != backings[name]})
        return lab.loss_of(model)

    for _ in range(5):
        step = search.weight_step(spy)
        assert addresses(search) == backings
        expected = {"body.0.candidates.0", "body.1.candidates.0"} if step.architecture["tied"] == "conv" else set()
        away = {name.rsplit(".", 2)[0] for name in seen[-1] if name.startswith(("body.0", "body.1"))}
        assert away == expected
        assert not any(name.startswith(("stem", "last", "body.4")) for name in seen[-1])  # shared: always there


def test_optimizer_state_is_at_home_between_steps_and_away_in_weight_steps_only(lab):
    search = lab.search_with(weights.Host(), "random")
    lab.take_steps(search, 8)
    parameter = search.model.body[2].candidates[0][0].weight
    buffer = search.weights.optimizer.state[parameter]["momentum_buffer"]
    backing, seen = buffer.data_ptr(), []

    def spy(model):
        seen.append(buffer.data_ptr() == backing)
        return lab.loss_of(model)

    for _ in range(6):
        search.architecture_step(spy)
    assert all(seen)
    drawn = [search.weight_step(spy).architecture["outer"] == "leaf" for _ in range(6)]
    assert [not at_home for at_home in seen[6:]] == drawn
    assert buffer.data_ptr() == backing
