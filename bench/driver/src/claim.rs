//! Formats claims that others have published, beside the figures of this machine, with a verdict on
//! each.

use upshift_report::Table;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    Reproduced,
    Contradicted,
    /// The claim can neither hold nor fail here, for this reason.
    NotComparable(&'static str),
    /// This machine has no figures for the claim.
    Unmeasured,
}

impl Finding {
    /// Returns `Reproduced` if the claim holds on this machine, otherwise `Contradicted`.
    pub(crate) fn reproduced_if(holds: bool) -> Finding {
        if holds {
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
    /// Creates a claim of a source. The judgement is the text of our figures, and the finding;
    /// without a judgement the claim is unmeasured.
    pub(crate) fn new(
        source: &'static str,
        published: &'static str,
        judgement: Option<(String, Finding)>,
    ) -> Claim {
        let (measured, finding) = judgement.unwrap_or(("–".into(), Finding::Unmeasured));
        Claim {
            source,
            published,
            measured,
            finding,
        }
    }
}

pub(crate) fn table(title: impl Into<String>, claims: Vec<Claim>) -> Table {
    // `<` aligns a column left.
    let mut table = Table::new(title, &["<source", "<published", "<here", "<verdict"]);
    for claim in claims {
        let verdict = match claim.finding {
            Finding::Reproduced => "reproduced".to_owned(),
            Finding::Contradicted => "**contradicted**".to_owned(),
            Finding::NotComparable(reason) => format!("not comparable: {reason}"),
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
