//! Predicts the times of many ranks from the costs that were measured between two ranks.
//!
//! The model describes SUMMA, a parallel matrix multiplication, of order n on √P × √P ranks with
//! panels of width w = 64. Each rank performs n³/P multiplications and takes part in two broadcasts
//! per panel, each in ⌈log₂ √P⌉ steps with a message of w·n/√P numbers. Rank 0 distributes the
//! matrices and collects the product, so 2·n² numbers and 2·P messages pass through rank 0
//! sequentially. A step costs α, a byte costs β, and a multiplication costs γ.
//!
//! The model neglects the network, contention in it, late ranks, and the memory bandwidth that
//! ranks of a node share. α and β are the costs of shared memory; to model a network, replace them
//! with its costs.

use upshift_report::Table;

use crate::Figures;
use crate::costs::{BYTES, CALL, LONG, MULTIPLY, SHORT};

/// Numbers of ranks.
const RANKS: [f64; 3] = [4.0, 64.0, 1024.0];
/// Orders of the matrices.
const ORDERS: [f64; 3] = [1024.0, 8192.0, 65536.0];
/// Width of a panel.
const PANEL: f64 = 64.0;

/// Costs in seconds.
struct Costs {
    message: f64,
    byte: f64,
    multiplication: f64,
    call: f64,
}

/// Returns the tables.
///
/// # Errors
/// Returns an error if the costs were not measured.
pub(crate) fn table(figures: &Figures) -> Result<String, String> {
    let median = |figure: &str| {
        let key = ("costs".into(), 2, "upshift".into(), figure.into());
        let mut values = figures.get(&key).cloned().unwrap_or_default();
        values.sort_by(f64::total_cmp);
        let middle = values.get(values.len() / 2).copied();
        middle.ok_or_else(|| format!("the costs lack {figure:?}"))
    };
    let message = median(SHORT)? * 1e-6;
    let costs = Costs {
        message,
        byte: (median(LONG)? * 1e-6 - message).max(0.0) / BYTES as f64,
        multiplication: median(MULTIPLY)? * 1e-9,
        call: median(CALL)? * 1e-6,
    };
    let mut product = Table::new(
        "",
        &[
            "<ranks",
            "<order",
            "computing s",
            "broadcasts s",
            "through rank 0 s",
            "one after the other s",
            "overlapped s",
            "of ideal %",
        ],
    );
    let mut requests = Table::new(
        "",
        &[
            "<ranks",
            "barrier µs",
            "urgent requests through one front, a second, at most",
            "<until an urgent request runs on any rank µs",
        ],
    );
    for ranks in RANKS {
        for order in ORDERS {
            product.row(row(&costs, ranks, order));
        }
        let barrier = ranks.log2().ceil() * costs.message;
        requests.row([
            ranks.to_string(),
            format!("{:.1}", barrier * 1e6),
            format!("{:.0}", 1.0 / costs.call),
            format!("{:.1} + the poll under way", costs.call / 2.0 * 1e6),
        ]);
    }
    Ok(format!(
        "\n### on paper: 4, 64 and 1,024 ranks\n\nFrom the costs of two ranks above: not measured.\n\n\
         α = {:.2} µs a message, β = {:.3} ns a byte, γ = {:.3} ns a multiplication, a call {:.2} µs\n\n{}{}\
         The product scales while n³/P·γ outweighs the rest, which it does not for small orders. The 2·n² numbers that pass through \
         rank 0 do not become fewer with P: a job that keeps its matrices spread does without them. An urgent request costs two \
         messages, whatever P is; how many there can be is limited by the one front.\n",
        costs.message * 1e6,
        costs.byte * 1e9,
        costs.multiplication * 1e9,
        costs.call * 1e6,
        product.markdown(),
        requests.markdown()
    ))
}

fn row(costs: &Costs, ranks: f64, order: f64) -> [String; 8] {
    let side = ranks.sqrt();
    let computing = order.powi(3) / ranks * costs.multiplication;
    let step = costs.message + PANEL * order / side * 8.0 * costs.byte;
    let broadcasts = order / PANEL * 2.0 * side.log2().ceil() * step;
    let root = 2.0 * order * order * 8.0 * costs.byte + 2.0 * ranks * costs.message;
    let serial = computing + broadcasts + root;
    let overlapped = computing.max(broadcasts) + root;
    let [
        computing_text,
        broadcasts_text,
        root_text,
        serial_text,
        overlapped_text,
    ] = [computing, broadcasts, root, serial, overlapped].map(|seconds| format!("{seconds:.3}"));
    let ideal = format!("{:.0}", 100.0 * computing / overlapped);
    let (ranks, order) = (ranks.to_string(), order.to_string());
    [
        ranks,
        order,
        computing_text,
        broadcasts_text,
        root_text,
        serial_text,
        overlapped_text,
        ideal,
    ]
}
