"""A report in a real browser: no errors, nothing loaded, the view draws and turns, all fits."""

import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from demx import config, resolve
from demx.evaluate import reference
from demx.fitted import Fitted
from demx.report import document, sections
from demx.report.shown import Cloud, Shown
from demx.train import Progress
from untrained import FLAT, untrained

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="no chromium, chromium-browser or google-chrome on this machine"
)
PHONE = 375  # pixels across
# in a page of a test only: what went wrong, what was loaded, what the canvas holds
WATCH = """<script>
const seen = [];
addEventListener("error", (event) => seen.push(event.message));
// a headless browser paints when it likes: here frames come by the clock
window.requestAnimationFrame = (draw) => setTimeout(() => draw(performance.now()), 20);
addEventListener("load", () => setTimeout(() => {
  if (!document.querySelector("canvas")) return still();
  const canvas = document.querySelector("canvas"), begun = Number(canvas.dataset.frames);
  setTimeout(() => tell(canvas, Number(canvas.dataset.frames) - begun), 1000);
}, 1000));
function still() {
  document.querySelectorAll("details").forEach((one) => (one.open = true));
  parent.document.body.dataset.found = JSON.stringify({
    errors: seen, loaded: performance.getEntriesByType("resource").map((r) => r.name),
    width: innerWidth, over: document.documentElement.scrollWidth - innerWidth,
    headings: [...document.querySelectorAll("h2")].map((one) => one.textContent),
    verdict: document.querySelector(".verdict").getBoundingClientRect().width,
  });
}
function tell(canvas, turned) {
  const slider = document.querySelector("input");
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  let painted = 0;
  for (let i = 3; i < data.length; i += 4) painted += data[i] > 0;
  const before = document.querySelector("output").textContent;
  slider.value = 0;
  slider.dispatchEvent(new Event("input"));
  parent.document.body.dataset.found = JSON.stringify({
    errors: seen, loaded: performance.getEntriesByType("resource").map((r) => r.name),
    painted: painted / (data.length / 4), turned, before,
    after: document.querySelector("output").textContent,
    button: document.querySelector(".view button").textContent,
    over: document.documentElement.scrollWidth - innerWidth,
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
    colours: [getComputedStyle(document.body).backgroundColor,
              getComputedStyle(document.querySelector("svg text")).fill],
  });
}
</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The sections of a report on lj13, of samples of the reference."""
    built, full = resolve.resolve("lj13")
    sets = reference.find("lj13", {}, built)
    energy = np.linspace(-50, -30, 400)
    clouds = (Cloud(sets.validation[:400], energy), Cloud(sets.test[:400], energy))
    history = [{"energy_calls": 10 * i, "loss": 1 / i, "evaluation": {"w2": 4.0}}
               for i in range(1, 9)]  # fmt: skip
    method = config.build_method("idem", built, full)
    fitted = Fitted(built, method, None, full, Progress(), history=history)
    shown = Shown(fitted, None, clouds[0], clouds[0], clouds[1], 0, 400)
    parts = [
        document.paragraph("words " * 60),
        sections.samples(shown), sections.energies(shown), sections.distances(shown),
        sections.free_energy(shown, None), sections.training(shown),
    ]  # fmt: skip
    text = document.document("a report", parts).replace("<head>", f"<head>{WATCH}")
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(text)
    return path


def opened(page, place, *flags, width=None):
    """What the page found of itself; the console must have stayed silent.

    width: of a frame that it stands in: a window is never narrower than 500.
    """
    if width is not None:
        frame = f'<iframe width={width} height=780 style="border:0" srcdoc="{{}}"></iframe>'
        narrow = page.with_name("narrow.html")
        narrow.write_text(f"<!doctype html>{frame}".format(html.escape(page.read_text())))
        page, flags = narrow, (*flags, "--window-size=600,900")
    done = subprocess.run(
        [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--user-data-dir={place}", "--enable-logging=stderr", "--virtual-time-budget=5000",
            *flags, "--dump-dom", page.as_uri(),
        ],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr, done.stderr
    return json.loads(html.unescape(re.search(r'data-found="(.*?)"', done.stdout)[1]))


def check(found):
    assert found["errors"] == [] and found["loaded"] == []
    # 13 balls of 0.36 of the nearest distance fill between a twentieth and half of the canvas
    assert 0.05 < found["painted"] < 0.5
    assert found["over"] <= 0, "the page is wider than the window"
    assert re.fullmatch(r"sample 20 of 40, energy -4\d\.\d*", found["before"])
    assert found["after"] == "sample 1 of 40, energy -50"


def test_the_whole_page_of_a_run_is_narrow_enough(tmp_path):
    """Verdict, weights, modes, the table of metrics and the configuration, all of them open."""
    fitted = untrained("gmm40", FLAT)
    path = fitted.report(tmp_path / "report.html", 100)
    path.write_text(path.read_text().replace("<head>", f"<head>{WATCH}"))
    found = opened(path, tmp_path / "browser", width=PHONE)
    assert found["errors"] == [] and found["loaded"] == []
    assert {"Weights", "Modes", "Metrics", "Made by"} <= {*found["headings"]}
    assert 200 < found["verdict"] <= found["width"] == PHONE
    assert found["over"] <= 0, "the page is wider than the window"


def luminance(colour):
    red, green, blue = map(float, re.findall(r"[\d.]+", colour)[:3])
    return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255


def test_the_view_turns_and_the_page_is_narrow_enough(page, tmp_path):
    light = "--blink-settings=preferredColorScheme=1"
    found = opened(page, tmp_path, light, width=PHONE)
    check(found)
    assert found["turned"] > 2 and found["button"] == "stop"
    paper, text = map(luminance, found["colours"])
    assert not found["dark"] and paper - text > 0.5


def test_it_rests_for_those_who_want_no_motion_and_reads_in_the_dark(page, tmp_path):
    flags = ("--blink-settings=preferredColorScheme=0", "--force-prefers-reduced-motion")
    found = opened(page, tmp_path, *flags, "--window-size=1200,900")
    check(found)
    assert found["turned"] == 0 and found["button"] == "turn"
    paper, text = map(luminance, found["colours"])
    assert found["dark"] and text - paper > 0.5
