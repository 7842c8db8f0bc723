//! Judges goals. A goal compares a quantity of Upshift with that of a *peer* (another measured
//! program) or with a limit, and gets a verdict.
//!
//! A goal has figures at one load or at several, of which the worst decides. Ratios are oriented so
//! that a ratio above 1 means that Upshift is behind.

use upshift_load::Spread;
use upshift_report::Table;

use crate::interval::Ratio;
use crate::peers::{UPSHIFT, WITHOUT_RUNTIME};
use crate::results::{Run, SectionResults};

/// Relative difference below which two figures of a virtual machine count as equal.
pub(crate) const NOISE: f64 = 0.05;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Reached: at least as good as the limit.
    Reached,
    /// Missed by at most [`NOISE`].
    Noise,
    Missed,
    /// There are no figures, or they do not count.
    Unmeasured,
}

/// A quantity of a program: one value for each round, or a constant.
#[derive(Clone, Debug)]
pub(crate) struct Values {
    name: String,
    by_round: Vec<(usize, f64)>,
    /// The value in every round, if it is a constant.
    constant: Option<f64>,
}

impl Values {
    /// Creates the values of a program from the finite ones of `by_round`; `None` if there are
    /// none.
    pub(crate) fn new(
        name: &str,
        by_round: impl IntoIterator<Item = (usize, f64)>,
    ) -> Option<Values> {
        let finite = by_round.into_iter().filter(|(_, value)| value.is_finite());
        let by_round: Vec<_> = finite.collect();
        (!by_round.is_empty()).then(|| Values {
            name: name.to_owned(),
            by_round,
            constant: None,
        })
    }

    /// Creates a limit, which is the same in every round.
    pub(crate) fn limit(value: f64) -> Option<Values> {
        Some(Values {
            name: "limit".into(),
            by_round: Vec::new(),
            constant: Some(value),
        })
    }

    /// Computes a value for each round in which both programs have one.
    pub(crate) fn combine(
        self,
        other: &Values,
        combine: impl Fn(f64, f64) -> f64,
    ) -> Option<Values> {
        let pairs = self.by_round.iter();
        let both =
            pairs.filter_map(|&(round, own)| Some((round, combine(own, other.in_round(round)?))));
        Values::new(&self.name, both.collect::<Vec<_>>())
    }

    pub(crate) fn map(self, convert: impl Fn(f64) -> f64) -> Values {
        let by_round = self.by_round.into_iter();
        Values {
            by_round: by_round
                .map(|(round, value)| (round, convert(value)))
                .collect(),
            ..self
        }
    }

    /// Returns the pair of values for each round in which both programs have one. Only `other` may
    /// be a limit.
    pub(crate) fn pairs(&self, other: &Values) -> Vec<(f64, f64)> {
        let rounds = self.by_round.iter();
        let pairs = rounds.filter_map(|&(round, own)| Some((own, other.in_round(round)?)));
        pairs.collect()
    }

    fn in_round(&self, round: usize) -> Option<f64> {
        let find = || self.by_round.iter().find(|(other, _)| *other == round);
        self.constant.or_else(|| Some(find()?.1))
    }

    pub(crate) fn median(&self) -> f64 {
        let spread = Spread::of(self.by_round.iter().map(|(_, value)| *value));
        self.constant.or(spread.map(|it| it.median)).unwrap_or(0.0)
    }
}

/// Figures of a goal at one load.
#[derive(Debug)]
struct Cell {
    load: String,
    /// Median of Upshift's values.
    own: f64,
    peer: String,
    /// Median of the values of `peer`.
    base: f64,
    ratio: Ratio,
}

/// A limit on the ratio of Upshift's quantity to a peer's.
#[derive(Debug)]
pub(crate) struct Goal {
    pub(crate) title: String,
    unit: &'static str,
    /// Largest permitted ratio.
    limit: f64,
    /// Set if more is better.
    is_rate: bool,
    /// Relative excess that counts as noise rather than as a miss.
    noise: f64,
    cells: Vec<Cell>,
    cause: &'static str,
    /// Reason why there can be no figures on this machine.
    excuse: Option<String>,
    /// Reason why the figures do not count.
    void_reason: Option<String>,
}

/// Creates a goal for a quantity of which less is better: at most `limit` times the peer's.
pub(crate) fn at_most(title: impl Into<String>, limit: f64, unit: &'static str) -> Goal {
    Goal {
        title: title.into(),
        unit,
        limit,
        is_rate: false,
        noise: NOISE,
        cells: Vec::new(),
        cause: "not known",
        excuse: None,
        void_reason: None,
    }
}

/// Creates a goal for a quantity of which more is better: at least `share` of the peer's.
pub(crate) fn at_least(title: impl Into<String>, share: f64, unit: &'static str) -> Goal {
    Goal {
        is_rate: true,
        ..at_most(title, 1.0 / share, unit)
    }
}

impl Goal {
    /// Adds the figures of a load if both programs have values.
    pub(crate) fn cell(
        mut self,
        load: impl Into<String>,
        own: Option<Values>,
        base: Option<Values>,
    ) -> Goal {
        let Some((own, base)) = own.zip(base) else {
            return self;
        };
        let mut pairs = own.pairs(&base);
        if !self.is_rate {
            pairs = pairs.into_iter().map(|(own, base)| (base, own)).collect();
        }
        self.cells.extend(Ratio::of(&pairs).map(|ratio| Cell {
            load: load.into(),
            own: own.median(),
            peer: base.name.clone(),
            base: base.median(),
            ratio,
        }));
        self
    }

    /// Makes the limit a margin: every excess is a miss, never noise.
    pub(crate) fn margin(self) -> Goal {
        Goal { noise: 0.0, ..self }
    }

    /// Names the known cause of a miss.
    pub(crate) fn cause(self, cause: &'static str) -> Goal {
        Goal { cause, ..self }
    }

    /// Names the reason why there may be no figures on this machine.
    pub(crate) fn excuse(self, why: Option<&str>) -> Goal {
        let excuse = why.map(str::to_owned);
        Goal { excuse, ..self }
    }

    pub(crate) fn discard_figures(&mut self, why: impl Into<String>) {
        self.void_reason = Some(why.into());
    }

    fn worst(&self) -> Option<&Cell> {
        let by_ratio = |a: &&Cell, b: &&Cell| a.ratio.value.total_cmp(&b.ratio.value);
        self.cells.iter().max_by(by_ratio)
    }

    fn best(&self) -> Option<&Cell> {
        let by_ratio = |a: &&Cell, b: &&Cell| a.ratio.value.total_cmp(&b.ratio.value);
        self.cells.iter().min_by(by_ratio)
    }

    /// Returns the worst ratio as a multiple of the permitted one.
    pub(crate) fn excess(&self) -> Option<f64> {
        Some(self.worst()?.ratio.value / self.limit)
    }

    pub(crate) fn verdict(&self) -> Verdict {
        match self.excess() {
            _ if self.void_reason.is_some() => Verdict::Unmeasured,
            None => Verdict::Unmeasured,
            Some(excess) if excess <= 1.0 => Verdict::Reached,
            Some(excess) if excess <= 1.0 + self.noise => Verdict::Noise,
            Some(_) => Verdict::Missed,
        }
    }

    /// Whether the goal is unmeasured, and nothing excuses that.
    pub(crate) fn is_open(&self) -> bool {
        self.verdict() == Verdict::Unmeasured && self.excuse.is_none()
    }

    /// Formats the verdict, with the cause of a miss.
    pub(crate) fn verdict_text(&self) -> String {
        match self.verdict() {
            Verdict::Reached => "reached".into(),
            Verdict::Noise => "missed by less than 5 % (noise)".into(),
            Verdict::Missed => {
                let ratio = self.worst().map_or(0.0, |it| it.ratio.value);
                format!("**missed** ({ratio:.2} ×; {})", self.cause)
            }
            Verdict::Unmeasured => match self.void_reason.as_ref().or(self.excuse.as_ref()) {
                Some(why) => format!("not measured: {why}"),
                None => "not measured".into(),
            },
        }
    }

    fn row(&self) -> [String; 5] {
        let dash = || "–".to_owned();
        let worst = self.worst();
        let ratio = worst.map(|worst| {
            let own = worst.ratio.format(2);
            match self.best().filter(|_| self.cells.len() > 1) {
                Some(best) => format!(
                    "{own}, {}; best {:.2}, {}",
                    worst.load, best.ratio.value, best.load
                ),
                None => own,
            }
        });
        [
            self.title.clone(),
            worst.map_or_else(dash, |it| format!("{} {}", figure(it.own), self.unit)),
            worst.map_or_else(dash, |it| format!("{}, {}", figure(it.base), it.peer)),
            ratio.unwrap_or_else(dash),
            self.verdict_text(),
        ]
    }
}

fn figure(value: f64) -> String {
    let digits = match value.abs() {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

pub(crate) struct SectionGoals {
    pub(crate) name: &'static str,
    /// `None` if the section was not measured.
    pub(crate) commit: Option<String>,
    pub(crate) goals: Vec<Goal>,
}

impl SectionGoals {
    fn count(&self, verdict: Verdict) -> usize {
        let goals = self.goals.iter();
        goals.filter(|goal| goal.verdict() == verdict).count()
    }
}

/// Formats the number of goals with each verdict as a sentence.
pub(crate) fn verdict_counts(all: &[SectionGoals]) -> String {
    let count = |verdict| all.iter().map(|it| it.count(verdict)).sum::<usize>();
    let number: usize = all.iter().map(|it| it.goals.len()).sum();
    format!(
        "Of {number} goals {} are reached, {} missed by less than 5 %, {} missed, {} not measured.",
        count(Verdict::Reached),
        count(Verdict::Noise),
        count(Verdict::Missed),
        count(Verdict::Unmeasured),
    )
}

/// Formats a row for each section: the number of goals with each verdict, the worst cell, and the
/// best cell.
pub(crate) fn summary(all: &[SectionGoals]) -> String {
    let heads = [
        "<section",
        "reached",
        "missed < 5 %",
        "missed",
        "not measured",
        "<worst cell",
        "<best cell",
        "<commit",
    ];
    let mut table = Table::new("", &heads);
    for section in all {
        let judged = section
            .goals
            .iter()
            .filter(|goal| goal.void_reason.is_none());
        let mut judged: Vec<_> = judged.filter_map(|it| Some((it.excess()?, it))).collect();
        judged.sort_by(|a, b| a.0.total_cmp(&b.0));
        let shown = |found: Option<&(f64, &Goal)>, select_cell: fn(&Goal) -> Option<&Cell>| {
            let cell = found.and_then(|(_, goal)| Some((goal, select_cell(goal)?)));
            cell.map_or("–".into(), |(goal, cell)| {
                format!("{:.2}: {}", cell.ratio.value, goal.title)
            })
        };
        table.row([
            section.name.to_owned(),
            section.count(Verdict::Reached).to_string(),
            section.count(Verdict::Noise).to_string(),
            section.count(Verdict::Missed).to_string(),
            section.count(Verdict::Unmeasured).to_string(),
            shown(judged.last(), Goal::worst),
            shown(judged.first(), Goal::best),
            section.commit.clone().unwrap_or("–".into()),
        ]);
    }
    table.markdown()
}

pub(crate) fn table(all: &[SectionGoals]) -> String {
    let heads = [
        "<section",
        "<goal",
        "Upshift",
        "peer",
        "<ratio (95 %)",
        "<verdict (ratio; cause)",
    ];
    let mut table = Table::new("", &heads);
    for section in all {
        for goal in &section.goals {
            let name = std::iter::once(section.name.to_owned());
            table.row(name.chain(goal.row()));
        }
    }
    table.markdown()
}

/// Returns the best peer at a load, and its median of `quantity`: the peer with the smallest
/// median. Variants of Upshift and servers without a runtime are not candidates.
pub(crate) fn best_peer<'a>(
    section: &'a SectionResults,
    case: &str,
    quantity: impl Fn(&Run) -> f64,
) -> Option<(&'a str, f64)> {
    let wanted = |peer: &str| !peer.starts_with(UPSHIFT) && !WITHOUT_RUNTIME.contains(&peer);
    section.lowest_median(case, wanted, quantity)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(name: &str, values: &[f64]) -> Option<Values> {
        Values::new(name, values.iter().copied().enumerate())
    }

    #[test]
    fn a_miss_below_the_noise_is_distinguished_unless_the_limit_is_a_margin() {
        let verdict = |own| {
            let goal =
                || at_most("a", 1.0, "µs").cell("", values("us", &[own]), Values::limit(1.0));
            [goal().verdict(), goal().margin().verdict()]
        };
        assert_eq!(verdict(1.0), [Verdict::Reached; 2]);
        assert_eq!(verdict(1.04), [Verdict::Noise, Verdict::Missed]);
        assert_eq!(verdict(1.06), [Verdict::Missed; 2]);
    }

    #[test]
    fn the_worst_cell_decides_and_the_best_is_shown_beside_it() {
        let goal = at_least("rate", 1.0, "k/s")
            .cell("8", values("us", &[20.0]), values("go", &[10.0]))
            .cell(
                "64",
                values("us", &[10.0, 10.0]),
                values("go", &[20.0, 20.0]),
            )
            .cell("none", None, values("go", &[1.0]))
            .cause("the cache");
        assert_eq!(goal.verdict(), Verdict::Missed);
        let row = goal.row();
        assert_eq!(row[1..3], ["10.0 k/s", "20.0, go"]);
        assert_eq!(row[3], "2.00 (2.00–2.00), 64; best 0.50, 8");
        assert_eq!(row[4], "**missed** (2.00 ×; the cache)");
    }

    #[test]
    fn rounds_are_paired_by_their_number() {
        let own = Values::new("us", [(0, 1.0), (2, 30.0)]);
        let base = Values::new("go", [(1, 7.0), (2, 10.0), (0, 1.0)]);
        let goal = at_most("a", 2.0, "µs").cell("", own.clone(), base.clone());
        let pairs = own
            .clone()
            .zip(base.clone())
            .map(|(own, base)| own.pairs(&base));
        assert_eq!(pairs, Some(vec![(1.0, 1.0), (30.0, 10.0)]));
        assert_eq!(goal.worst().map(|cell| cell.ratio.value), Some(15.5 / 5.5));
        let sum = own
            .zip(base)
            .and_then(|(own, base)| own.combine(&base, |a, b| a + b));
        assert_eq!(sum.map(|it| it.median()), Some(21.0));
    }

    #[test]
    fn a_goal_without_figures_is_open_unless_it_names_the_reason() {
        let goal = || at_most("a", 1.0, "µs");
        assert!(goal().is_open());
        let excused = goal().excuse(Some("needs root"));
        assert!(!excused.is_open());
        assert_eq!(excused.verdict_text(), "not measured: needs root");
        let mut discarded = goal().cell("", values("us", &[1.0]), Values::limit(1.0));
        assert_eq!(discarded.verdict_text(), "reached");
        discarded.discard_figures("the section was disturbed");
        assert!(discarded.is_open());
    }
}
