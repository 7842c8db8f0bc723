//! Targets and verdicts: rows of the summary at the top of the page.

use upshift_report::Table;

use crate::peers::{NO_RUNTIME, UPSHIFT};
use crate::results::{Run, SectionResults};

/// Relative difference below which figures of a virtual machine are equal.
pub(crate) const NOISE: f64 = 0.05;

/// Outcome of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// At least as good as the target.
    Reached,
    /// Missed by less than [`NOISE`].
    Noise,
    /// Missed.
    Missed,
    /// There are no figures.
    Unmeasured,
}

/// One row of the summary.
#[derive(Debug)]
pub(crate) struct Row {
    /// Text of the target.
    pub(crate) target: String,
    /// Measured figures.
    pub(crate) measured: String,
    /// Outcome of the target.
    pub(crate) verdict: Verdict,
}

/// Formats rows as a table.
pub(crate) fn table(title: impl Into<String>, rows: Vec<Row>) -> Table {
    let mut table = Table::new(title, &["<target", "<measured", "<verdict"]);
    for row in rows {
        let verdict = match row.verdict {
            Verdict::Reached => "reached",
            Verdict::Noise => "missed by less than 5 % (noise)",
            Verdict::Missed => "**not reached**",
            Verdict::Unmeasured => "not measured",
        };
        table.row([row.target, row.measured, verdict.to_owned()]);
    }
    table
}

/// The verdict on a published claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// The claim holds here.
    Reproduced,
    /// The claim does not hold here.
    Contradicted,
    /// The claim can neither hold nor fail here, for this reason.
    NotComparable(&'static str),
    /// There are no figures.
    Unmeasured,
}

impl Finding {
    /// Returns the finding for a claim that holds here, or does not.
    pub(crate) fn of(is_so: bool) -> Finding {
        if is_so {
            Finding::Reproduced
        } else {
            Finding::Contradicted
        }
    }
}

/// A published claim beside the figures of this machine.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    source: &'static str,
    published: &'static str,
    measured: String,
    pub(crate) finding: Finding,
}

impl Claim {
    /// Creates a claim of a source; without figures it is unmeasured.
    pub(crate) fn new(
        source: &'static str,
        published: &'static str,
        found: Option<(String, Finding)>,
    ) -> Claim {
        let (measured, finding) = found.unwrap_or(("–".into(), Finding::Unmeasured));
        Claim {
            source,
            published,
            measured,
            finding,
        }
    }
}

/// Formats claims as a table.
pub(crate) fn claims(title: impl Into<String>, claims: Vec<Claim>) -> Table {
    let mut table = Table::new(title, &["<source", "<published", "<here", "<verdict"]);
    for claim in claims {
        let verdict = match claim.finding {
            Finding::Reproduced => "reproduced".to_owned(),
            Finding::Contradicted => "**contradicted**".to_owned(),
            Finding::NotComparable(why) => format!("not comparable: {why}"),
            Finding::Unmeasured => "not measured".to_owned(),
        };
        table.row([
            claim.source.to_owned(),
            claim.published.to_owned(),
            claim.measured,
            verdict,
        ]);
    }
    table
}

/// Judges `value` against an upper `limit`.
pub(crate) fn at_most(value: f64, limit: f64) -> Verdict {
    if value <= limit {
        Verdict::Reached
    } else if value <= limit * (1.0 + NOISE) {
        Verdict::Noise
    } else {
        Verdict::Missed
    }
}

/// Creates a row; without a finding it is unmeasured.
pub(crate) fn row(target: impl Into<String>, found: Option<(String, Verdict)>) -> Row {
    let (measured, verdict) = found.unwrap_or(("–".into(), Verdict::Unmeasured));
    Row {
        target: target.into(),
        measured,
        verdict,
    }
}

/// Judges `own` against `base` as a ratio of at most `limit`; both are shown with `digits` digits
/// and a unit.
pub(crate) fn ratio(
    own: Option<f64>,
    base: Option<f64>,
    limit: f64,
    (digits, unit): (usize, &str),
) -> Option<(String, Verdict)> {
    let (own, base) = own.zip(base)?;
    let times = own / base;
    let text = format!("{times:.2} × ({own:.digits$} against {base:.digits$}{unit})");
    Some((text, at_most(times, limit)))
}

/// Judges a margin, to which noise is not added.
pub(crate) fn within(is_kept: bool) -> Verdict {
    if is_kept {
        Verdict::Reached
    } else {
        Verdict::Missed
    }
}

/// Returns the best peer, by the smallest median of `of`.
pub(crate) fn best_peer<'a>(
    section: &'a SectionResults,
    case: &str,
    of: impl Fn(&Run) -> f64,
) -> Option<(&'a str, f64)> {
    let wanted = |peer: &str| !peer.starts_with(UPSHIFT) && !NO_RUNTIME.contains(&peer);
    section.least(case, wanted, of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_miss_below_the_noise_is_told_apart() {
        assert_eq!(at_most(1.0, 1.0), Verdict::Reached);
        assert_eq!(at_most(1.04, 1.0), Verdict::Noise);
        assert_eq!(at_most(1.06, 1.0), Verdict::Missed);
    }
}
