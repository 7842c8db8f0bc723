//! What the web server was to reach.

use super::{
    CAPACITY_CASE, FILES, IDLE_CASE, JSON_CASE, ORDERS_80_CASE, ORDERS_CASE, OVERLOAD_CASE,
    rest_row, urgent_row,
};
use crate::results::{Run, SectionResults};
use crate::verdict::{Row, at_most, row};

const OURS: &str = "axum on upshift";
const TOKIO: &str = "axum on tokio";
const SERVE: &str = "upshift serve";

/// Adds the rows of the section.
pub(crate) fn rows(section: &SectionResults, rows: &mut Vec<Row>) {
    let median = |case: &str, name: &str, of: fn(&Run) -> f64| section.cell(case, name)?.median(of);
    let against = |case: &str, of: fn(&Run) -> f64| {
        let (ours, theirs) = (median(case, OURS, of)?, median(case, TOKIO, of)?);
        let text = format!("{ours:.2} against {theirs:.2} µs");
        Some((text, at_most(ours, theirs)))
    };
    rows.push(row(
        "axum JSON: CPU per request ≤ the same application on tokio",
        against(JSON_CASE, Run::cpu),
    ));
    rows.push(row(
        "axum JSON of 30 orders: CPU per request ≤ the same application on tokio",
        against(ORDERS_CASE, Run::cpu),
    ));
    rows.push(row(
        "axum JSON of 30 orders at 80 % load: p99 ≤ the same application on tokio",
        against(ORDERS_80_CASE, |r| r.p99),
    ));
    let urgent =
        |case: &str, name: &str| median(case, &urgent_row(name), |r| r.honest(r.p99, 0.99));
    let grown = |name: &str| Some((urgent(IDLE_CASE, name)?, urgent(OVERLOAD_CASE, name)?));
    let others: Vec<_> = [TOKIO, "go-http"]
        .into_iter()
        .filter_map(|name| Some((name, grown(name)?)))
        .map(|(name, (idle, loaded))| format!("{name} {:.0} ×", loaded / idle))
        .collect();
    rows.push(row(
        "a tenth u=0 at 120 % of capacity: their p99 ≤ 2 × that alone",
        grown(SERVE).map(|(idle, loaded)| {
            let text = format!(
                "{loaded:.0} against {idle:.0} µs, {:.1} ×; {}",
                loaded / idle,
                others.join(", ")
            );
            (text, at_most(loaded, 2.0 * idle))
        }),
    ));
    let rate = |case: &str, name: &str| median(case, name, |r| r.per_second);
    let kept = |name: &str| {
        let overload =
            rate(OVERLOAD_CASE, &urgent_row(name))? + rate(OVERLOAD_CASE, &rest_row(name))?;
        Some(overload / rate(CAPACITY_CASE, name)?)
    };
    rows.push(row(
        "at 120 % of capacity: replies ≥ what the axum application on tokio keeps of its capacity",
        kept(SERVE).zip(kept(TOKIO)).map(|(ours, theirs)| {
            let text = format!(
                "{:.0} % of it against {:.0} %",
                100.0 * ours,
                100.0 * theirs
            );
            (text, at_most(theirs, ours))
        }),
    ));
    for (case, size) in FILES {
        let rate = |name: &str| median(case, name, |r| r.per_second);
        let found = rate(SERVE).zip(rate("nginx")).map(|(ours, nginx)| {
            let mib = size as f64 / f64::from(1 << 20);
            let text = format!("{:.0} and {:.0} MiB/s", ours * mib, nginx * mib);
            (text, at_most(nginx, ours))
        });
        rows.push(row(
            format!("{case}: upshift serve not slower than nginx"),
            found,
        ));
    }
}
