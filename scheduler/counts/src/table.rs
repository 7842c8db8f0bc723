//! Reads and writes the table of instruction counts: a line with the versions of the tools, then a
//! line for each operation.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

pub(crate) struct Table {
    /// Versions of the tools, and whether the CPU has AVX2.
    pub(crate) made_with: String,
    /// Name of each operation, and its number of instructions.
    pub(crate) counts: Vec<(String, f64)>,
}

impl Table {
    /// Creates an empty table with the versions of this machine's tools, and with whether its CPU
    /// has AVX2.
    pub(crate) fn empty() -> Table {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let avx2 = if cpuinfo.contains(" avx2 ") {
            "avx2"
        } else {
            "no avx2"
        };
        let tools = [
            ["rustc", "--version"],
            ["valgrind", "--version"],
            ["ldd", "--version"],
        ];
        let mut made_with = tools.map(first_line).join(", ");
        made_with.push_str(", ");
        made_with.push_str(avx2);
        Table {
            made_with,
            counts: Vec::new(),
        }
    }

    fn path() -> PathBuf {
        PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/table.txt"))
    }

    pub(crate) fn read() -> Result<Table, String> {
        let path = Table::path();
        let text = std::fs::read_to_string(&path).map_err(|error| {
            format!(
                "{}: {error} (the command `accept` creates it)",
                path.display()
            )
        })?;
        let mut lines = text.lines();
        let made_with = lines.next().unwrap_or_default().to_owned();
        let counts = lines
            .map(|line| {
                let (name, count) = line.split_once(' ')?;
                Some((name.to_owned(), count.trim().parse().ok()?))
            })
            .collect::<Option<_>>()
            .ok_or_else(|| format!("{}: a line is not `NAME COUNT`", path.display()))?;
        Ok(Table { made_with, counts })
    }

    /// Prints the table and writes it to its file.
    pub(crate) fn write(&self) -> Result<(), String> {
        let mut text = format!("{}\n", self.made_with);
        for (name, count) in &self.counts {
            let _ = writeln!(text, "{name:14} {count:12.1}");
        }
        print!("{text}");
        std::fs::write(Table::path(), text).map_err(|error| error.to_string())
    }

    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        let entry = self.counts.iter().find(|entry| entry.0 == name);
        entry.map(|(_, count)| *count)
    }
}

fn first_line(command: [&str; 2]) -> String {
    let output = Command::new(command[0]).arg(command[1]).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let line = text
        .ok()
        .and_then(|text| text.lines().next().map(str::to_owned));
    line.unwrap_or_else(|| format!("no {}", command[0]))
}
