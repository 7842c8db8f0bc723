//! Formats the measured times as tables.

use upshift_elevate::Calibration;

use upshift_report::Table;
use upshift_report::number::micros;

fn us(ns: u64) -> String {
    micros(ns as f64 / 1000.0)
}

pub(super) fn switches(calibration: &Calibration) -> Table {
    let mut table = Table::new(
        format!(
            "CPU {}, measured in {:.0} ms",
            calibration.cpu,
            calibration.took.as_secs_f64() * 1000.0
        ),
        &["<operation", "median", "p99", "samples"],
    );
    for (operation, figures) in [
        (
            "switch: elevate, run, demote itself, back",
            &calibration.switch,
        ),
        ("change of priority without a switch", &calibration.change),
        ("hand-over by futex", &calibration.hand_over),
    ] {
        table.row([
            operation.into(),
            us(figures.p50_ns),
            us(figures.p99_ns),
            figures.samples.to_string(),
        ]);
    }
    table
}

pub(super) fn timers(calibration: &Calibration) -> Table {
    let mut table = Table::new(
        "one-shot timers",
        &[
            "requested",
            "late, median",
            "late, p99",
            "arming, median",
            "arming, p99",
        ],
    );
    for timer in &calibration.timers {
        table.row([
            us(timer.requested_ns),
            us(timer.lateness.p50_ns),
            us(timer.lateness.p99_ns),
            us(timer.arming.p50_ns),
            us(timer.arming.p99_ns),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use upshift_elevate::{Quantiles, TimerFloor};
    use upshift_report::table::MAX_WIDTH;

    fn sample() -> Calibration {
        let figures = Quantiles {
            p50_ns: 3_400,
            p99_ns: 123_456_789,
            samples: 4000,
        };
        Calibration {
            cpu: 127,
            switch: figures,
            change: figures,
            hand_over: figures,
            timers: vec![TimerFloor {
                requested_ns: 200_000,
                arming: figures,
                lateness: figures,
            }],
            look: Duration::from_micros(20),
            took: Duration::from_millis(170),
        }
    }

    #[test]
    fn tables_fit_the_terminal_and_show_every_figure() {
        let calibration = sample();
        for table in [switches(&calibration), timers(&calibration)] {
            let text = table.to_string();
            assert!(text.contains("3.40 µs"), "{text}");
            assert!(text.lines().all(|line| line.chars().count() <= MAX_WIDTH));
        }
    }
}
