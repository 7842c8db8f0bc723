//! What was measured, as tables and as JSON.

use serde_json::{Value, json};
use upshift_elevate::{Calibration, Priority, Quantiles, Rights, Throttling};

use upshift_report::Table;
use upshift_report::number::micros;

fn us(ns: u64) -> String {
    micros(ns as f64 / 1000.0)
}

pub(super) fn switches(found: &Calibration) -> Table {
    let mut table = Table::new(
        format!(
            "CPU {}, measured in {:.0} ms",
            found.cpu,
            found.took.as_secs_f64() * 1000.0
        ),
        &["<what", "median", "p99", "samples"],
    );
    for (what, figures) in [
        ("switch: elevate, run, demote itself, back", &found.switch),
        ("change of priority without a switch", &found.change),
        ("hand-over by futex", &found.hand_over),
    ] {
        table.row([
            what.into(),
            us(figures.p50_ns),
            us(figures.p99_ns),
            figures.samples.to_string(),
        ]);
    }
    table
}

pub(super) fn timers(found: &Calibration) -> Table {
    let mut table = Table::new(
        "one-shot timers",
        &[
            "asked",
            "late, median",
            "late, p99",
            "arming, median",
            "arming, p99",
        ],
    );
    for timer in &found.timers {
        table.row([
            us(timer.asked_ns),
            us(timer.lateness.p50_ns),
            us(timer.lateness.p99_ns),
            us(timer.arming.p50_ns),
            us(timer.arming.p99_ns),
        ]);
    }
    table
}

fn quantiles_value(figures: &Quantiles) -> Value {
    json!({
        "p50_ns": figures.p50_ns,
        "p99_ns": figures.p99_ns,
        "samples": figures.samples,
    })
}

pub(super) fn calibration_value(found: &Calibration) -> Value {
    let timers: Vec<Value> = found
        .timers
        .iter()
        .map(|timer| {
            json!({
                "asked_ns": timer.asked_ns,
                "arming": quantiles_value(&timer.arming),
                "lateness": quantiles_value(&timer.lateness),
            })
        })
        .collect();
    json!({
        "cpu": found.cpu,
        "took_ns": found.took.as_nanos() as u64,
        "switch": quantiles_value(&found.switch),
        "change": quantiles_value(&found.change),
        "hand_over": quantiles_value(&found.hand_over),
        "timers": timers,
        "look_ns": found.look_cost().as_nanos() as u64,
        "quantum_floor_ns": found.quantum_floor().as_nanos() as u64,
    })
}

pub(super) fn rights_value(rights: &Rights) -> Value {
    let missing: Vec<String> = rights.lacks.iter().map(ToString::to_string).collect();
    let throttling = match rights.throttling {
        Throttling::On {
            runtime_us,
            period_us,
        } => json!({ "runtime_us": runtime_us, "period_us": period_us }),
        Throttling::Off => json!("off"),
        Throttling::Unknown => Value::Null,
    };
    let group = rights
        .group
        .as_ref()
        .map(|group| json!({ "path": group.path, "runtime_us": group.runtime_us }));
    json!({
        "highest_priority": rights.highest.map(Priority::get),
        "cap_sys_nice": rights.capable,
        "throttling": throttling,
        "cgroup": group,
        "user_namespace": rights.user_namespace,
        "seccomp_filter": rights.filtered,
        "missing": missing,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use upshift_elevate::TimerFloor;
    use upshift_report::table::MAX_WIDTH;

    fn found() -> Calibration {
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
                asked_ns: 200_000,
                arming: figures,
                lateness: figures,
            }],
            look: Duration::from_micros(20),
            took: Duration::from_millis(170),
        }
    }

    #[test]
    fn tables_fit_the_terminal_and_show_every_figure() {
        let found = found();
        for table in [switches(&found), timers(&found)] {
            let text = table.to_string();
            assert!(text.contains("3.40 µs"), "{text}");
            assert!(text.lines().all(|line| line.chars().count() <= MAX_WIDTH));
        }
    }

    #[test]
    fn json_holds_what_the_tables_show() {
        let value = calibration_value(&found());
        assert_eq!(value["switch"]["p50_ns"], 3_400);
        assert_eq!(value["timers"][0]["asked_ns"], 200_000);
        assert_eq!(value["look_ns"], 20_000);
        assert!(value["quantum_floor_ns"].as_u64().unwrap() >= 5_000);
        let rights = rights_value(&Rights::probe());
        assert!(rights["missing"].is_array() && rights["cap_sys_nice"].is_boolean());
    }
}
