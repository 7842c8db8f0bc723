//! The tables of what was measured: printed, and written into `docs/mpi.md` between two marks.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{EXPLAINED, Figures, MEASUREMENTS, model, sizes};

const BEGIN: &str = "<!-- written by `cargo xtask mpi bench` -->";
const END: &str = "<!-- end of what is written -->";

/// All tables.
///
/// # Errors
/// The costs were not measured.
pub(crate) fn tables(figures: &Figures) -> Result<String, String> {
    let mut page = only(figures);
    page.push_str(&model::table(figures)?);
    Ok(page)
}

/// The tables of what was measured.
pub(crate) fn only(figures: &Figures) -> String {
    let mut page = String::new();
    for ((name, ways), (_, text)) in MEASUREMENTS.iter().zip(EXPLAINED) {
        let mut titles: Vec<&str> = Vec::new();
        for (of, .., figure) in figures.keys() {
            if of == name && !titles.contains(&figure.as_str()) {
                titles.push(figure);
            }
        }
        if titles.is_empty() {
            continue;
        }
        if *name == "sizes" {
            let _ = write!(page, "\n### {name}\n\n{text}.\n\n");
            page.push_str(&by_size(figures, ways));
            continue;
        }
        titles.sort_unstable();
        // The number in front is for the order.
        let words = titles
            .iter()
            .map(|title| title.split_once(' ').map_or(*title, |of| of.1));
        let words: Vec<_> = words.collect();
        let _ = write!(
            page,
            "\n### {name}\n\n{text}.\n\n| ranks | way | {} |\n",
            words.join(" | ")
        );
        let _ = writeln!(page, "|---|---{}|", "|---".repeat(titles.len()));
        let mut ranks: Vec<usize> = figures
            .keys()
            .filter(|key| key.0 == *name)
            .map(|key| key.1)
            .collect();
        ranks.dedup();
        for ranks in ranks {
            for way in *ways {
                let cell = |title: &&str| {
                    let key = (
                        (*name).to_owned(),
                        ranks,
                        (*way).to_owned(),
                        (*title).to_owned(),
                    );
                    figures
                        .get(&key)
                        .map_or("–".to_owned(), |values| spread(values))
                };
                let cells: Vec<_> = titles.iter().map(cell).collect();
                let _ = writeln!(page, "| {ranks} | {way} | {} |", cells.join(" | "));
            }
        }
    }
    page
}

/// A row for each operation and size, a column for each way.
fn by_size(figures: &Figures, ways: &[&str]) -> String {
    let mut table = format!("| ranks | operation | {} |\n", ways.join(" | "));
    let _ = writeln!(table, "|---|---{}|", "|---".repeat(ways.len()));
    let mut rows: Vec<_> = figures
        .keys()
        .filter(|key| key.0 == "sizes")
        .map(|key| (key.1, key.3.as_str()))
        .collect();
    rows.sort_unstable_by_key(|(ranks, row)| (*ranks, sizes::place(row)));
    rows.dedup();
    for (ranks, row) in rows {
        let cell = |way: &&str| {
            let key = ("sizes".into(), ranks, (*way).into(), row.to_owned());
            let values = figures.get(&key);
            values.map_or("–".to_owned(), |values| spread(values))
        };
        let cells: Vec<_> = ways.iter().map(cell).collect();
        let _ = writeln!(table, "| {ranks} | {row} | {} |", cells.join(" | "));
    }
    table
}

/// Median with smallest and largest, in three digits.
fn spread(values: &[f64]) -> String {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let [least, .., most] = sorted.as_slice() else {
        return sorted.first().map_or("–".to_owned(), |only| short(*only));
    };
    let median = sorted[sorted.len() / 2];
    format!("{} ({}–{})", short(median), short(*least), short(*most))
}

fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn output(program: &str, args: &[&str]) -> String {
    let output = Command::new(program)
        .args(args)
        .current_dir(root())
        .output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.unwrap_or_default()
}

/// The commit of the tree; `None` if the tree differs from it in more than this page.
pub(crate) fn commit() -> Option<String> {
    let changes = output(
        "git",
        &[
            "status",
            "--porcelain",
            "--",
            ".",
            ":!docs/mpi.md",
            ":!bench/results",
            ":!bench/RESULTS.md",
        ],
    );
    let commit = output("git", &["rev-parse", "--short", "HEAD"]);
    (changes.is_empty() && !commit.is_empty()).then_some(commit)
}

/// What it was measured with.
pub(crate) fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mpi = output("mpirun", &["--version"]);
    format!(
        "{cpus} CPUs ({}), Linux {}, {}",
        model.map_or("?", |(_, name)| name),
        output("uname", &["-r"]),
        mpi.lines().next().unwrap_or("?")
    )
}

/// Puts a text between the marks of the page.
///
/// # Errors
/// The page cannot be read or written, or has no marks.
pub(crate) fn write(text: &str) -> Result<(), String> {
    let path = root().join("docs/mpi.md");
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let page = std::fs::read_to_string(&path).map_err(failed)?;
    let parts = page
        .split_once(BEGIN)
        .and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let (before, after) = parts.ok_or_else(|| format!("{} lacks its marks", path.display()))?;
    std::fs::write(&path, format!("{before}{BEGIN}\n{text}\n{END}{after}")).map_err(failed)?;
    eprintln!("wrote {}", path.display());
    Ok(())
}
