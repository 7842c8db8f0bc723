//! The experiment as charts, a table, and the commands that repeat it.

use upshift_load::scenario::{LEVELS, OVERLOAD_SIZE};
use upshift_load::{GroupReport, Report};
use upshift_trace::plot::{Kind, Look, Plot, Series};

use super::{CONNECTIONS, Run, times};
use crate::demo::bench::{Bench, server_flags};
use crate::load::latencies;
use crate::table::{Table, grouped};

pub(super) fn throughput_plot(run: &Run) -> Plot {
    let bars = |name: &str, colour: usize, rate: &dyn Fn(usize) -> f64| Series {
        name: name.into(),
        points: (0..LEVELS.len()).map(|i| (i as f64, rate(i))).collect(),
        colour,
        look: Look::Bar,
    };
    let served =
        |report: &Report, i: usize| report.groups.get(i).map_or(f64::NAN, |g| g.per_second);
    Plot {
        title: format!("Served per level at overload, {}", run.place),
        x_label: "level (0 is most urgent)".into(),
        y_label: "requests per second".into(),
        x: Kind::Linear,
        y: Kind::Linear,
        groups: LEVELS.iter().map(ToString::to_string).collect(),
        series: vec![
            bars("offered", 8, &|_| run.offered),
            bars("served", 6, &|i| served(&run.levels, i)),
            bars("served, all at one level", 2, &|i| {
                served(&run.one_level, i)
            }),
        ],
        palette: 'p',
    }
}

pub(super) fn latency_plot(run: &Run) -> Plot {
    let curve = |group: &GroupReport, name: String, colour: usize, look: Look| Series {
        name,
        points: group.curve.iter().map(|&(q, us)| (q, us / 1e3)).collect(),
        colour,
        look,
    };
    let mut series: Vec<Series> = run
        .levels
        .groups
        .iter()
        .zip(LEVELS)
        .enumerate()
        .map(|(i, (group, level))| curve(group, format!("level {level}"), i, Look::Curve))
        .collect();
    series.extend(
        run.alone
            .groups
            .first()
            .map(|g| curve(g, "level 0 alone".into(), 8, Look::DashedCurve)),
    );
    series.push(curve(
        &run.one_level.total,
        "all at one level".into(),
        9,
        Look::DashedCurve,
    ));
    Plot {
        title: format!("Latency by level at overload, {}", run.place),
        x_label: "percentile of the level's replies".into(),
        y_label: "latency, ms".into(),
        x: Kind::Quantile,
        y: Kind::Log10,
        groups: Vec::new(),
        series,
        palette: 'p',
    }
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
