//! The findings as text and as JSON, one line each.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::args::DoctorArgs;
use crate::wrap::wrap;

/// Grade of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Health {
    Fine,
    Less,
    Not,
}

impl Health {
    fn word(self) -> &'static str {
        match self {
            Health::Fine => "ok",
            Health::Less => "note",
            Health::Not => "no",
        }
    }
}

/// A finding.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) what: &'static str,
    pub(super) health: Health,
    text: String,
}

impl Finding {
    pub(super) fn new(what: &'static str, health: Health, text: impl Into<String>) -> Finding {
        let text = text.into();
        Finding { what, health, text }
    }
}

/// Columns of a line, and columns before its text.
const WIDTH: usize = 100;
const MARGIN: usize = 23;

pub(super) fn print(args: &DoctorArgs, findings: &[Finding]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if args.json {
        let value =
            |it: &Finding| json!({"what": it.what, "health": it.health.word(), "text": it.text});
        let all: Vec<Value> = findings.iter().map(value).collect();
        writeln!(out, "{:#}", Value::from(all))?;
    } else {
        for Finding { what, health, text } in findings {
            let lines = wrap(text, WIDTH - MARGIN);
            writeln!(out, "{:4}  {what:15}  {}", health.word(), lines[0])?;
            for line in &lines[1..] {
                writeln!(out, "{:MARGIN$}{line}", "")?;
            }
        }
    }
    out.flush()
}
