//! Formats the tables of the figures, which are printed and written into `mpi/bench/FIGURES.md`
//! between two marks.

use std::path::{Path, PathBuf};
use std::process::Command;

use upshift_report::Table;

use crate::{DESCRIPTIONS, Figures, MEASUREMENTS, model, sizes};

const BEGIN: &str = "<!-- written by `cargo xtask mpi bench` -->";
const END: &str = "<!-- end of what is written -->";

/// Returns all tables.
///
/// # Errors
/// Returns an error if the costs were not measured.
pub(crate) fn tables(figures: &Figures) -> Result<String, String> {
    let mut page = measured_tables(figures);
    page.push_str(&model::table(figures)?);
    Ok(page)
}

pub(crate) fn measured_tables(figures: &Figures) -> String {
    let mut page = String::new();
    for ((name, ways), (_, text)) in MEASUREMENTS.iter().zip(DESCRIPTIONS) {
        let keys = figures.keys().filter(|key| key.0 == *name);
        // Each way has a row for each number of ranks. In the table of sizes, each operation has a
        // row instead.
        let mut rows: Vec<(usize, &str)> = Vec::new();
        let mut columns: Vec<&str> = Vec::new();
        let is_by_size = *name == "sizes";
        for (_, ranks, way, figure) in keys {
            let (row, column) = if is_by_size {
                (figure, way)
            } else {
                (way, figure)
            };
            rows.push((*ranks, row));
            columns.push(column);
        }
        if rows.is_empty() {
            continue;
        }
        columns.sort_unstable();
        let position = |way: &str| ways.iter().position(|known| *known == way);
        if is_by_size {
            rows.sort_unstable_by_key(|(ranks, row)| (*ranks, sizes::table_position(row)));
            columns.sort_unstable_by_key(|way| position(way));
        } else {
            rows.sort_unstable_by_key(|(ranks, row)| (*ranks, position(row)));
        }
        rows.dedup();
        columns.dedup();
        // The number at the start of a figure's name determines the order.
        let title = |column: &&str| match column.split_once(' ') {
            Some((_, words)) if !is_by_size => words.to_owned(),
            _ => (*column).to_owned(),
        };
        let first = if is_by_size { "<operation" } else { "<way" };
        let headers = ["<ranks", first].map(str::to_owned).into_iter();
        let headers: Vec<String> = headers.chain(columns.iter().map(title)).collect();
        let mut table = Table::new(format!("### {name}\n\n{text}."), &headers);
        for (ranks, row) in rows {
            let cell = |column: &&str| {
                let (way, figure) = if is_by_size {
                    (*column, row)
                } else {
                    (row, *column)
                };
                let key = ((*name).to_owned(), ranks, way.to_owned(), figure.to_owned());
                figures
                    .get(&key)
                    .map_or("–".to_owned(), |values| format_spread(values))
            };
            let headers = [ranks.to_string(), row.to_owned()].into_iter();
            table.row(headers.chain(columns.iter().map(cell)));
        }
        page += "\n";
        page += table.markdown().trim_end();
        page += "\n";
    }
    page
}

/// Formats the median and the range of the values, with three digits each.
fn format_spread(values: &[f64]) -> String {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let [min, .., max] = sorted.as_slice() else {
        return sorted
            .first()
            .map_or("–".to_owned(), |value| format_short(*value));
    };
    let median = sorted[sorted.len() / 2];
    format!(
        "{} ({}–{})",
        format_short(median),
        format_short(*min),
        format_short(*max)
    )
}

fn format_short(value: f64) -> String {
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

/// Returns the commit that changed the sources last, or `None` if the sources differ from it.
pub(crate) fn commit() -> Option<String> {
    const SOURCES: [&str; 6] = [
        "mpi",
        "scheduler",
        "linux",
        "machine",
        "tools",
        ":!mpi/bench/FIGURES.md",
    ];
    let git = |words: &[&str]| output("git", &[words, &["--"], &SOURCES].concat());
    let commit = git(&["log", "-1", "--format=%h"]);
    let changes = git(&["status", "--porcelain"]);
    (changes.is_empty() && !commit.is_empty()).then_some(commit)
}

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

/// Writes a text between the marks of the page.
///
/// # Errors
/// Returns an error if the page cannot be read or written, or has no marks.
pub(crate) fn write(text: &str) -> Result<(), String> {
    let path = root().join("mpi/bench/FIGURES.md");
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
