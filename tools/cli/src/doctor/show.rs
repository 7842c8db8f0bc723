//! Formats the findings as text, one line each, or as JSON.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::args::DoctorArgs;
use crate::wrap::wrap;

/// Degree to which a feature works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Health {
    Ok,
    Restricted,
    Broken,
}

impl Health {
    fn as_str(self) -> &'static str {
        match self {
            Health::Ok => "ok",
            Health::Restricted => "note",
            Health::Broken => "no",
        }
    }
}

/// The state of one feature, and advice.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) feature: &'static str,
    pub(super) health: Health,
    text: String,
}

impl Finding {
    pub(super) fn new(feature: &'static str, health: Health, text: impl Into<String>) -> Finding {
        let text = text.into();
        Finding {
            feature,
            health,
            text,
        }
    }
}

/// Width of a line, in columns.
const WIDTH: usize = 100;
/// Column at which the text of a finding begins.
const TEXT_COLUMN: usize = 23;

pub(super) fn print(args: &DoctorArgs, findings: &[Finding]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if args.json {
        let value = |finding: &Finding| {
            let health = finding.health.as_str();
            json!({"what": finding.feature, "health": health, "text": finding.text})
        };
        let all: Vec<Value> = findings.iter().map(value).collect();
        writeln!(out, "{:#}", Value::from(all))?;
    } else {
        for Finding {
            feature,
            health,
            text,
        } in findings
        {
            let lines = wrap(text, WIDTH - TEXT_COLUMN);
            writeln!(out, "{:4}  {feature:15}  {}", health.as_str(), lines[0])?;
            for line in &lines[1..] {
                writeln!(out, "{:TEXT_COLUMN$}{line}", "")?;
            }
        }
    }
    out.flush()
}
