//! What many ranks would do, from what two of them cost: on paper.
//!
//! SUMMA of order n on √P × √P ranks, panels of width w = 64: each rank multiplies n³/P times; it takes part in two broadcasts per
//! panel, each in ⌈log₂ √P⌉ steps of a message with w·n/√P numbers. Rank 0 cuts the matrix up and collects the product:
//! 2·n² numbers and 2·P messages go through it, one after the other. A step costs α, a byte β, a multiplication γ.
//!
//! What it leaves out: the network (α and β are those of shared memory here: put in those of yours), contention in it, ranks that
//! are late, and the memory bandwidth that ranks of a node share.

use crate::Figures;
use crate::costs::{BYTES, CALL, LONG, MULTIPLY, SHORT};

const RANKS: [f64; 3] = [4.0, 64.0, 1024.0];
const ORDERS: [f64; 3] = [1024.0, 8192.0, 65536.0];
const PANEL: f64 = 64.0;

struct Costs {
    message: f64,
    byte: f64,
    multiplication: f64,
    call: f64,
}

/// Prints the tables.
///
/// # Errors
/// The costs were not measured.
pub(crate) fn print(figures: &Figures) -> Result<(), String> {
    let median = |figure: &str| {
        let key = ("costs".into(), 2, "upshift".into(), figure.into());
        let mut values = figures.get(&key).cloned().unwrap_or_default();
        values.sort_by(f64::total_cmp);
        let middle = values.get(values.len() / 2).copied();
        middle.ok_or_else(|| format!("no figure {figure:?}"))
    };
    let message = median(SHORT)? * 1e-6;
    let costs = Costs {
        message,
        byte: (median(LONG)? * 1e-6 - message).max(0.0) / BYTES as f64,
        multiplication: median(MULTIPLY)? * 1e-9,
        call: median(CALL)? * 1e-6,
    };
    println!("\n## model\nOn paper, from the costs of two ranks above: not measured.\n");
    println!(
        "α = {:.2} µs a message, β = {:.3} ns a byte, γ = {:.3} ns a multiplication, a call {:.2} µs",
        costs.message * 1e6,
        costs.byte * 1e9,
        costs.multiplication * 1e9,
        costs.call * 1e6
    );
    println!(
        "\n| ranks | order | computing s | broadcasts s | through rank 0 s | one after the other s | overlapped s | of ideal % |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for ranks in RANKS {
        for order in ORDERS {
            row(&costs, ranks, order);
        }
    }
    println!(
        "\n| ranks | barrier µs | urgent requests through one front, a second, at most | until an urgent request runs on any rank µs |"
    );
    println!("|---|---|---|---|");
    for ranks in RANKS {
        let barrier = ranks.log2().ceil() * costs.message;
        println!(
            "| {ranks} | {:.1} | {:.0} | {:.1} + the poll under way |",
            barrier * 1e6,
            1.0 / costs.call,
            costs.call / 2.0 * 1e6
        );
    }
    println!(
        "\nThe product scales where n³/P·γ outweighs the rest: not for small orders, and the 2·n² numbers through rank 0 do not shrink with P: \
         a job that keeps its matrices spread does without them. An urgent request costs two messages whatever P is; one front is \
         the limit on how many there can be."
    );
    Ok(())
}

fn row(costs: &Costs, ranks: f64, order: f64) {
    let side = ranks.sqrt();
    let computing = order.powi(3) / ranks * costs.multiplication;
    let step = costs.message + PANEL * order / side * 8.0 * costs.byte;
    let broadcasts = order / PANEL * 2.0 * side.log2().ceil() * step;
    let root = 2.0 * order * order * 8.0 * costs.byte + 2.0 * ranks * costs.message;
    let serial = computing + broadcasts + root;
    let overlapped = computing.max(broadcasts) + root;
    println!(
        "| {ranks} | {order} | {computing:.3} | {broadcasts:.3} | {root:.3} | {serial:.3} | {overlapped:.3} | {:.0} |",
        100.0 * computing / overlapped
    );
}
