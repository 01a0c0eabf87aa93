"""The page as a browser sees it."""

import html
import json
import shutil
import subprocess
import tempfile

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = pytest.mark.skipif(BROWSER is None, reason="neither chromium nor google-chrome is installed")

# The page itself has no scripts: a copy of it is asked these questions. The copy stands in a frame, as a window
# cannot be made as narrow as a telephone.
FRAME = '<body><iframe style="width: {width}px; height: 900px; border: 0" srcdoc="{page}"></iframe></body>'
QUESTIONS = """<script>
function told(circle) {
  // What a pointer at its middle would meet is this circle, or one that is drawn over it and tells something, too.
  circle.scrollIntoView({block: "center", inline: "center"});
  const box = circle.getBoundingClientRect();
  const met = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
  return met !== null && met.matches(".values circle") && met.textContent.length > 4;
}
addEventListener("load", () => {
  const images = [...document.images];
  const requests = performance.getEntriesByType("resource").map(entry => entry.name);
  const answers = document.createElement("pre");
  answers.textContent = JSON.stringify({
    window: innerWidth,
    content: document.documentElement.scrollWidth,
    images: images.length,
    plots: [...document.querySelectorAll(".plot")].filter(plot => plot.getBoundingClientRect().width > 200).length,
    hidden: [...document.querySelectorAll(".values circle")].filter(circle => !told(circle)).length,
    broken: images.filter(image => !image.complete || !image.naturalWidth).map(image => image.alt),
    requests: requests.filter(name => !name.startsWith("data:")),
  });
  parent.document.body.replaceChildren(answers);
});
</script>"""


def browse(path, *options):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        return subprocess.run(
            [
                BROWSER,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--enable-logging=stderr",
                "--host-resolver-rules=MAP * ~NOTFOUND",
                f"--user-data-dir={profile}",
                *options,
                path.as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )


def ask(page, width, folder):
    copy = folder / "copy.html"
    copy.write_text(FRAME.format(width=width, page=html.escape(page.replace("</body>", f"{QUESTIONS}</body>"))))
    seen = browse(copy, "--window-size=1300,1000", "--dump-dom")
    answers = json.loads(html.unescape(seen.stdout.partition("<pre>")[2].partition("</pre>")[0]))
    return answers | {"console": [line for line in seen.stderr.splitlines() if "CONSOLE" in line]}


@pytest.mark.parametrize("width", [1200, 400])
@pytest.mark.parametrize("study", ["report", "ptb_report"])
def test_the_page_fits_loads_and_asks_for_nothing(study, width, request, tmp_path):
    page = request.getfixturevalue(study)[0].read_text()
    assert ask(page, width, tmp_path) == {
        "window": width,
        "content": width,
        "images": 8,
        "plots": 7,
        "hidden": 0,
        "broken": [],
        "requests": [],
        "console": [],
    }


def test_the_questions_would_find_what_is_wrong(tmp_path):
    answers = ask(
        """<body>
        <img src="data:image/svg+xml,nothing" alt="nothing">
        <img src="http://nowhere.invalid/picture.png" alt="missing">
        <div style="width: 900px">wide</div>
        <script>console.error("wrong")</script>
        </body>""",
        400,
        tmp_path,
    )
    assert (answers["window"], answers["content"] > 900) == (400, True)
    assert answers["broken"] == ["nothing", "missing"]
    assert answers["requests"] == ["http://nowhere.invalid/picture.png"]
    assert any("wrong" in line for line in answers["console"])


def test_there_is_something_to_see(report, tmp_path):
    image = pytest.importorskip("matplotlib.image")
    picture = tmp_path / "page.png"
    browse(report[0], "--window-size=1200,3000", f"--screenshot={picture}")
    pixels = image.imread(picture)[..., :3]
    assert pixels.shape == (3000, 1200, 3)
    rows_with_ink = (pixels.std(axis=1) > 0.02).any(axis=-1)
    assert rows_with_ink.mean() > 0.3
