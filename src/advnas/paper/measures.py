"""How far an estimator is from grad J, and how docs/theory.md writes it down."""

from advnas.testing.enumeration import Enumeration, Estimates


def relative_bias(problem: Enumeration, estimates: Estimates) -> float:
    """|E[delta] - grad J| / |grad J|."""
    truth = problem.gradient
    bias = estimates.mean - truth
    return float(bias.norm() / truth.norm())


def alignment(problem: Enumeration, estimates: Estimates) -> float:
    """The cosine of E[delta] and grad J; not a number where E[delta] = 0."""
    mean, truth = estimates.mean, problem.gradient
    return float((mean * truth).sum() / (mean.norm() * truth.norm()))


def relative_error(problem: Enumeration, estimates: Estimates) -> float:
    """E|delta - grad J|^2 / |grad J|^2; the variance, for an unbiased estimator."""
    distances = (estimates.values - problem.gradient).square().sum((-2, -1))
    return float(estimates.probabilities @ distances / problem.gradient.square().sum())


def number(value: float) -> str:
    """Three significant digits, and 0 for what is only rounding error."""
    if value != value:
        return "none"
    return "0" if abs(value) < 1e-9 else f"{value:.3g}"


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
