//! Saves, loads and deletes the results of the sections, each section in its own file, and adopts
//! the results of an earlier run.
//!
//! A section has the file `results/NAME.json`, so that a run replaces only its own sections. The
//! file has a line for each cell, and contains all runs rather than their median and extremes.

use std::fmt::Write as _;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{Cell, Figure, Results, SectionResults, push_once};
use crate::section::Section;

fn file(folder: &Path, section: &str) -> PathBuf {
    folder.join("results").join(format!("{section}.json"))
}

impl SectionResults {
    /// Adopts from `before` the results that this run has not measured again, if both runs measured
    /// the same commit on the same machine.
    pub(crate) fn take_over(&mut self, before: SectionResults) {
        if (&before.commit, &before.machine) != (&self.commit, &self.machine) {
            return;
        }
        let is_new = |cell: &Cell| self.cell(&cell.case, &cell.peer).is_none();
        let mut cells: Vec<Cell> = before.cells.into_iter().filter(is_new).collect();
        cells.append(&mut self.cells);
        self.cells = cells;
        for (own, old) in [
            (&mut self.versions, before.versions),
            (&mut self.commands, before.commands),
            (&mut self.notes, before.notes),
        ] {
            let new = std::mem::replace(own, old);
            new.into_iter().for_each(|line| push_once(own, line));
        }
        let is_new = |it: &Figure| {
            !self
                .figures
                .iter()
                .any(|own| (&own.bench, &own.peer) == (&it.bench, &it.peer))
        };
        let old: Vec<Figure> = before.figures.into_iter().filter(is_new).collect();
        self.figures.splice(0..0, old);
        self.missing.retain(|peer| before.missing.contains(peer));
        self.rounds = self.rounds.min(before.rounds);
        self.seconds += before.seconds;
        self.runs += before.runs;
        self.repeated += before.repeated;
        self.disturbed += before.disturbed;
        self.is_whole |= before.is_whole;
    }

    /// Formats the section as JSON, with a line for each element of a list.
    fn json(&self) -> Result<String, serde_json::Error> {
        let value = |out: &mut String, name: &str, text: String| {
            let comma = if out.len() > 1 { "," } else { "" };
            let _ = write!(out, "{comma}\n  \"{name}\": {text}");
        };
        let mut out = String::from("{");
        value(&mut out, "commit", serde_json::to_string(&self.commit)?);
        value(&mut out, "when", serde_json::to_string(&self.when)?);
        value(&mut out, "rounds", self.rounds.to_string());
        value(&mut out, "seconds", self.seconds.to_string());
        value(&mut out, "runs", self.runs.to_string());
        value(&mut out, "repeated", self.repeated.to_string());
        value(&mut out, "disturbed", self.disturbed.to_string());
        value(&mut out, "is_whole", self.is_whole.to_string());
        value(&mut out, "missing", serde_json::to_string(&self.missing)?);
        value(&mut out, "machine", lines(&self.machine)?);
        value(&mut out, "versions", lines(&self.versions)?);
        value(&mut out, "commands", lines(&self.commands)?);
        value(&mut out, "cells", lines(&self.cells)?);
        value(&mut out, "figures", lines(&self.figures)?);
        value(&mut out, "notes", lines(&self.notes)?);
        out.push_str("\n}\n");
        Ok(out)
    }

    pub(crate) fn save(&self, folder: &Path, section: &str) -> Result<(), String> {
        let file = file(folder, section);
        let text = self.json().map_err(|e| e.to_string())?;
        std::fs::create_dir_all(folder.join("results"))
            .and_then(|()| std::fs::write(&file, text))
            .map_err(|e| format!("cannot write {}: {e}", file.display()))
    }
}

fn lines<T: Serialize>(items: &[T]) -> Result<String, serde_json::Error> {
    let items = items.iter().map(serde_json::to_string);
    let items = items.collect::<Result<Vec<_>, _>>()?;
    Ok(if items.is_empty() {
        "[]".to_owned()
    } else {
        format!("[\n    {}\n  ]", items.join(",\n    "))
    })
}

impl Results {
    /// Reads the results in `folder`; a section without a file is absent.
    pub(crate) fn load(folder: &Path) -> Result<Results, String> {
        let mut results = Results::default();
        for section in Section::ALL {
            let file = file(folder, section.name());
            let text = match std::fs::read_to_string(&file) {
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                text => text.map_err(|e| format!("cannot read {}: {e}", file.display()))?,
            };
            let section_results = serde_json::from_str(&text)
                .map_err(|e| format!("{}: {e}; delete it and measure again", file.display()))?;
            results
                .sections
                .insert(section.name().to_owned(), section_results);
        }
        Ok(results)
    }

    /// Deletes the file of a section, if there is one.
    pub(crate) fn drop_section(&mut self, folder: &Path, section: &str) -> Result<(), String> {
        self.sections.remove(section);
        let file = file(folder, section);
        match std::fs::remove_file(&file) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                Err(format!("cannot delete {}: {e}", file.display()))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Run;

    fn cell(rates: &[f64]) -> Cell {
        let run = |&per_second| Run {
            per_second,
            ..Run::default()
        };
        Cell {
            case: "a".into(),
            peer: "b".into(),
            runs: rates.iter().map(run).collect(),
        }
    }

    #[test]
    fn a_run_of_selected_servers_keeps_the_other_servers_of_the_same_commit() {
        let section = |commit: &str, peer: &str, rate: f64| SectionResults {
            commit: commit.into(),
            commands: vec![format!("--peers {peer}"), "the same".into()],
            cells: vec![Cell {
                peer: peer.into(),
                ..cell(&[rate])
            }],
            ..SectionResults::default()
        };
        let mut now = section("abc", "c", 3.0);
        now.take_over(section("abc", "b", 1.0));
        now.take_over(section("abc", "c", 2.0));
        now.take_over(section("abd", "d", 2.0));
        let peers: Vec<_> = now.cells.iter().map(|it| it.peer.as_str()).collect();
        assert_eq!(peers, ["b", "c"]);
        assert_eq!(
            now.cell("a", "c")
                .and_then(|it| it.median(|r| r.per_second)),
            Some(3.0)
        );
        assert_eq!(now.commands, ["--peers c", "the same", "--peers b"]);
    }

    #[test]
    fn saved_results_are_read_back_with_five_digits() {
        let folder =
            std::env::temp_dir().join(format!("upshift-bench-test-{}", std::process::id()));
        let section = SectionResults {
            commit: "abc".into(),
            notes: vec!["a \"quoted\" note".into(), "another".into()],
            cells: vec![cell(&[123_456.789, 0.0])],
            ..SectionResults::default()
        };
        section.save(&folder, "levels").unwrap();
        let mut results = Results::load(&folder).unwrap();
        let section_results = &results.sections["levels"];
        assert_eq!(
            (&section_results.commit, &section_results.notes),
            (&section.commit, &section.notes)
        );
        assert_eq!(section_results.cells[0].runs[0].per_second, 123_460.0);
        results.drop_section(&folder, "levels").unwrap();
        results.drop_section(&folder, "levels").unwrap();
        assert!(Results::load(&folder).unwrap().sections.is_empty());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
