//! The experiment as charts, a table, and the commands that repeat it.

use upshift_load::scenario::{LEVELS, OVERLOAD_SIZE};
use upshift_load::{GroupReport, Report};
use upshift_report::plot::{self, DARK, SOFT};
use upshift_report::{Kind, Look, Plot, Table, number::grouped};

use super::{CONNECTIONS, Run, times};
use crate::demo::bench::{Bench, server_flags};
use crate::load::latencies;

pub(super) fn throughput_plot(run: &Run) -> Plot {
    let served =
        |report: &Report, i: usize| report.groups.get(i).map_or(f64::NAN, |g| g.per_second);
    let title = format!("Served per level at overload, {}", run.place);
    let y = ("requests per second", Kind::Linear);
    let mut plot = Plot::bars(title, "level (0 is most urgent)", y, LEVELS);
    let mut bars = |name: &str, colour, rate: &dyn Fn(usize) -> f64| {
        let points = (0..LEVELS.len()).map(|i| (i as f64, rate(i)));
        plot.add(name, Look::Bar, colour, points);
    };
    bars("offered", SOFT, &|_| run.offered);
    bars("served", plot::LEVELS[6], &|i| served(&run.levels, i));
    bars("served, all at one level", plot::LEVELS[2], &|i| {
        served(&run.one_level, i)
    });
    plot
}

pub(super) fn latency_plot(run: &Run) -> Plot {
    let mut plot = Plot::new(
        format!("Latency by level at overload, {}", run.place),
        ("percentile of the level's replies", Kind::Quantile),
        ("latency, ms", Kind::Log10),
    );
    let mut curve = |group: &GroupReport, name: String, colour, look| {
        let points = group.curve.iter().map(|&(q, us)| (q, us / 1e3));
        plot.add(name, look, colour, points);
    };
    let groups = run.levels.groups.iter().zip(LEVELS);
    for ((group, level), colour) in groups.zip(plot::LEVELS) {
        curve(group, format!("level {level}"), colour, Look::Curve);
    }
    if let Some(alone) = run.alone.groups.first() {
        curve(alone, "level 0 alone".into(), SOFT, Look::DashedCurve);
    }
    let one_level = "all at one level".into();
    curve(&run.one_level.total, one_level, DARK, Look::DashedCurve);
    plot
}

pub(super) fn table(run: &Run) -> Table {
    let mut table = Table::new(
        format!(
            "8 levels on {}: capacity {} req/s, {} offered to each level",
            run.place,
            grouped(run.capacity),
            grouped(run.offered)
        ),
        &[
            "<level",
            "?offered/s",
            "served/s",
            "served",
            "p50",
            "?p90",
            "p99",
            "?p99.9",
            "max",
            "waiting",
        ],
    );
    let mut row = |name: String, offered: f64, group: &GroupReport| {
        let rates = [
            name,
            grouped(offered),
            grouped(group.per_second),
            format!("{:.0} %", (100.0 * group.per_second / offered).min(100.0)),
        ];
        let cells = rates.into_iter().chain(latencies(group));
        table.row(cells.chain([grouped(group.unanswered as f64)]));
    };
    for (group, level) in run.levels.groups.iter().zip(LEVELS) {
        row(level.to_string(), run.offered, group);
    }
    row(
        "8 levels together".into(),
        run.offered * 8.0,
        &run.levels.total,
    );
    row("0 alone".into(), run.offered, &run.alone.total);
    row(
        "all at one level".into(),
        run.offered * 8.0,
        &run.one_level.total,
    );
    table
}

pub(super) fn commands(bench: &Bench, run: &Run) -> Vec<String> {
    let cpus = if run.vcpus > 1 {
        &bench.placement.all
    } else {
        &bench.placement.server
    };
    let times = times(bench.quick);
    let ports = |with_levels: bool, flag: &str, label: &str| {
        LEVELS
            .iter()
            .enumerate()
            .map(|(i, level)| {
                let level = if with_levels {
                    format!("@{label}{level}")
                } else {
                    String::new()
                };
                format!("{flag} 127.0.0.1:{}{level}", 7000 + i)
            })
            .collect::<Vec<_>>()
            .join(" ")
    };
    vec![
        format!(
            "# {}: eight levels; for one level leave out the @LEVEL of --listen",
            run.place
        ),
        format!(
            "upshift matrix-server {} {} & SERVER=$!; sleep 1",
            server_flags(cpus).join(" "),
            ports(true, "--listen", "")
        ),
        format!(
            "upshift load matrix {} --connections {CONNECTIONS} --size {OVERLOAD_SIZE} --rate {:.0} --warmup {}ms --duration {}ms{} --server-pid $SERVER",
            ports(true, "--connect", "level-"),
            run.offered,
            times.warmup.as_millis(),
            times.overload.as_millis(),
            bench.placement.client_flag()
        ),
        "kill $SERVER; wait $SERVER".into(),
    ]
}
