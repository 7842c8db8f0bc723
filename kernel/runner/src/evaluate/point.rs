//! A measured point: the load of a machine, and its figures. The file of points has a line for each
//! figure. *The papers* are those on SharedScheduler, cited in `docs/papers.md`.

use std::fmt;

/// A machine and its load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) model: usize,
    pub(crate) connections: u32,
    /// The server squares matrices of `n` rows and `n` columns.
    pub(crate) n: u32,
    /// Number of levels over which the connections are spread.
    pub(crate) levels: u32,
    /// Milliseconds between two requests of a connection; 0 for a closed loop.
    pub(crate) period: u32,
    /// Duration of the measurement, in milliseconds of the machine.
    pub(crate) millis: u32,
    pub(crate) harts: u32,
    /// Binary logarithm of the nanoseconds per instruction.
    pub(crate) shift: u32,
}

/// Names of the models in the papers. A call that waits is a coroutine of the kernel or a kernel
/// thread (KC, KT); the server has three coroutines or three threads for each connection (UC, UT).
pub(crate) const MODELS: [&str; 4] = ["KCUC", "KCUT", "KTUC", "KTUT"];

impl Load {
    pub(crate) fn has_threads(&self) -> bool {
        self.model % 2 == 1
    }

    pub(crate) fn has_kernel_threads(&self) -> bool {
        self.model >= 2
    }

    /// Returns the milliseconds of the simulated clock per millisecond of this machine. They differ
    /// because the clock counts the instructions of all harts, which take turns.
    pub(crate) fn stretch(&self) -> u32 {
        self.harts
    }
}

/// Name of a clock that counts instructions, one per nanosecond; slower clocks append a divisor.
const COUNTED: &str = "icount";

/// Returns [`Load::shift`] for the name of a clock, as `Display` writes it.
fn shift_of(clock: &str) -> u32 {
    let nanos = clock
        .strip_prefix(COUNTED)
        .and_then(|rest| rest.strip_prefix('/'));
    nanos
        .and_then(|nanos| nanos.parse::<u32>().ok())
        .map_or(0, |nanos| nanos.max(1).ilog2())
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Load {
            connections,
            n,
            levels,
            period,
            millis,
            harts,
            ..
        } = self;
        let clock = match self.shift {
            0 => COUNTED.to_owned(),
            shift => format!("{COUNTED}/{}", 1 << shift),
        };
        let model = MODELS[self.model];
        write!(
            f,
            "{model},{connections},{n},{levels},{period},{millis},{harts},{clock}"
        )
    }
}

/// Figures of the requests of all connections, or of one level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Figures {
    /// `all`, or the level.
    pub(crate) group: String,
    pub(crate) count: u64,
    /// Latencies, in microseconds.
    pub(crate) mean: u64,
    pub(crate) median: u64,
    pub(crate) p99: u64,
    /// Standard deviation, which the papers call jitter.
    pub(crate) deviation: u64,
    pub(crate) pages: u64,
    /// Percentiles 25, 75, 90 and 99.9 of the latencies.
    pub(crate) spread: [u64; 4],
    /// Nanoseconds of the simulated clock per request, from the first reply of each connection to
    /// its last; 0 if unknown.
    pub(crate) nanos: u64,
}

/// A load and its figures: first of all requests, then of each level. `figures` is empty if the
/// machine failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) load: Load,
    pub(crate) figures: Vec<Figures>,
}

/// The first line of the file.
pub(crate) const COLUMNS: &str = "model,connections,n,levels,period_ms,measured_ms,harts,time,who,answered,mean_us,\
                                  median_us,p99_us,deviation_us,pages,p25_us,p75_us,p90_us,p999_us,request_ns";

impl Point {
    /// Returns the point's lines in the file.
    pub(crate) fn lines(&self) -> String {
        if self.figures.is_empty() {
            return format!("{},fails,0,0,0,0,0,0,0,0,0,0,0\n", self.load);
        }
        let line = |figures: &Figures| {
            let Figures {
                group,
                count,
                mean,
                median,
                p99,
                deviation,
                pages,
                spread: [p25, p75, p90, p999],
                nanos,
            } = figures;
            let load = self.load;
            format!(
                "{load},{group},{count},{mean},{median},{p99},{deviation},{pages},{p25},{p75},{p90},{p999},{nanos}\n"
            )
        };
        self.figures.iter().map(line).collect()
    }

    pub(crate) fn rate(&self) -> Option<f64> {
        let all = self.figures.first()?;
        Some(all.count as f64 * 1000.0 / f64::from(self.load.millis))
    }

    /// Returns the instructions of all harts per request of a closed loop. They are normally
    /// computed from the time between the replies of each connection. They are computed from the
    /// number of replies if the file lacks that time, or if the time is so short that it would
    /// imply more than `count + connections` replies, because a connection was answered during a
    /// part of the run only.
    pub(crate) fn instructions(&self) -> Option<u64> {
        let all = self.figures.first().filter(|all| all.count > 0)?;
        let spent = u64::from(self.load.millis) * u64::from(self.load.stretch()) * 1_000_000;
        let max_replies = all.count + u64::from(self.load.connections);
        let nanos = if all.nanos >= spent / max_replies {
            all.nanos
        } else {
            spent / all.count
        };
        Some(nanos >> self.load.shift)
    }
}

pub(crate) fn parse(file: &str) -> Vec<Point> {
    let mut points: Vec<Point> = Vec::new();
    for line in file.lines() {
        let Some((load, figures)) = parse_line(line) else {
            continue;
        };
        match points.last_mut() {
            Some(point) if point.load == load => point.figures.extend(figures),
            _ => points.push(Point {
                load,
                figures: figures.into_iter().collect(),
            }),
        }
    }
    points
}

fn parse_line(line: &str) -> Option<(Load, Option<Figures>)> {
    let words: Vec<&str> = line.split(',').collect();
    let [
        model,
        connections,
        n,
        levels,
        period,
        millis,
        harts,
        clock,
        group,
        rest @ ..,
    ] = &words[..]
    else {
        return None;
    };
    let load = Load {
        model: MODELS.iter().position(|known| known == model)?,
        connections: connections.parse().ok()?,
        n: n.parse().ok()?,
        levels: levels.parse().ok()?,
        period: period.parse().ok()?,
        millis: millis.parse().ok()?,
        harts: harts.parse().ok()?,
        shift: shift_of(clock),
    };
    let number = |at: usize| rest.get(at)?.parse::<u64>().ok();
    let figures = Figures {
        group: (*group).to_owned(),
        count: number(0)?,
        mean: number(1)?,
        median: number(2)?,
        p99: number(3)?,
        deviation: number(4)?,
        pages: number(5)?,
        spread: [number(6)?, number(7)?, number(8)?, number(9)?],
        nanos: number(10)?,
    };
    Some((load, (*group != "fails").then_some(figures)))
}

/// Parses a line that the benchmarked program prints: model and load, group, then numbers. Times
/// are divided by `stretch`.
pub(crate) fn parse_program_line(line: &str, stretch: u32) -> Option<Figures> {
    let words: Vec<&str> = line.strip_prefix("matrix: ")?.split(' ').collect();
    let number = |at: usize| words.get(at)?.parse::<u64>().ok();
    let time = |at: usize| Some(number(at)? / u64::from(stretch));
    Some(Figures {
        group: (*words.get(5)?).to_owned(),
        count: number(6)?,
        mean: time(8)?,
        median: time(9)?,
        p99: time(10)?,
        deviation: time(11)?,
        pages: number(12)?,
        spread: [time(13)?, time(14)?, time(15)?, time(16)?],
        nanos: number(17)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_of_the_program_have_figures() {
        let line = "matrix: threads 16 8 1 0 all 1011 1011718 1561 1538 1902 123 951 1500 1600 1700 1950 97000";
        let parsed = parse_program_line(line, 2);
        assert!(parsed.is_some_and(|figures| {
            let Figures {
                count,
                pages,
                nanos,
                ..
            } = figures;
            (count, pages, nanos) == (1011, 951, 97_000)
        }));
        assert!(parse_program_line("matrix: threads,1: no memory left", 1).is_none());
        assert!(parse_program_line("test x ... ok", 1).is_none());
    }

    #[test]
    fn points_are_parsed_from_their_lines() {
        let load = Load {
            model: 1,
            connections: 8,
            n: 20,
            levels: 2,
            period: 50,
            millis: 500,
            harts: 2,
            shift: 5,
        };
        let figures = |group: &str| Figures {
            group: group.to_owned(),
            count: 1,
            mean: 2,
            median: 3,
            p99: 4,
            deviation: 5,
            pages: 6,
            spread: [1, 2, 3, 4],
            nanos: 7,
        };
        let whole = Point {
            load,
            figures: ["all", "10", "14"].map(figures).into(),
        };
        let failed = Point {
            load: Load { harts: 4, ..load },
            figures: Vec::new(),
        };
        let file = format!("{COLUMNS}\n{}{}", whole.lines(), failed.lines());
        assert_eq!(parse(&file), [whole, failed]);
    }

    #[test]
    fn instructions_per_request_ignore_an_extra_round_of_replies() {
        // 96 connections are answered together every 21.3 ms: nine or ten times in 200 ms.
        let cost = |rounds: u64| {
            let line = format!(
                "matrix: coroutines 96 20 1 0 all {} 0 21286 0 0 0 0 0 0 0 0 221729",
                96 * rounds
            );
            let load = parse_line("KCUC,96,20,1,0,200,1,icount,fails,0,0,0,0,0,0,0,0,0,0,0")
                .map(|(load, _)| load);
            let figures = parse_program_line(&line, 1).into_iter().collect();
            load.map(|load| Point { load, figures }.instructions())
        };
        assert_eq!(cost(9), Some(Some(221_729)));
        assert_eq!(cost(9), cost(10));
    }

    #[test]
    fn a_connection_answered_only_briefly_does_not_lower_the_cost() {
        let line = "KTUT,64,20,1,0,200,3,icount,all,2337,4260,5055,7428,1979,2298,0,0,0,0,209208";
        let point = &parse(&format!("{COLUMNS}\n{line}\n"))[0];
        // 200 ms on each of 3 harts are 600 million instructions, for 2,337 replies.
        assert_eq!(point.instructions(), Some(600_000_000 / 2_337));
    }
}
