//! Which points there are.

use super::point::{Load, MODELS};

const CONNECTIONS: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 96, 128];

/// How long is measured, in milliseconds of the machine: in a closed loop, in an open one.
pub(crate) const CLOSED: u32 = 200;
pub(crate) const OPEN: u32 = 500;
/// Where only memory is asked for.
pub(crate) const MEMORY: u32 = 20;
/// Numbers of connections between which the memory of one is told.
pub(crate) const FEW_CONNECTIONS: u32 = 16;
pub(crate) const MANY_CONNECTIONS: u32 = 64;

/// Numbers of connections whose memory is told by itself: the most that are published for KTUT and KCUC, and nearly as
/// many as there are sockets for both of their ends.
pub(crate) const MOST_CONNECTIONS: [u32; 3] = [186, 385, 500];

/// What is published: an FPGA of four harts, each a tenth as fast as ours would be at an instruction per nanosecond. So a
/// hart of ours is worth two and a half times as much as all of theirs, and has to do everything as much more often; one for
/// one, ten times as often.
pub(crate) const PUBLISHED_N: u32 = 15;
pub(crate) const PUBLISHED_PERIOD: u32 = 40;
pub(crate) const PUBLISHED_FASTER: f64 = 2.5;
pub(crate) const PUBLISHED_PRIORITY_PERIOD: u32 = 5;
pub(crate) const PUBLISHED_PRIORITY_CONNECTIONS: u32 = 64;

/// Of the points with priorities: more than a hart can serve, as in the papers.
pub(crate) const PRIORITY_PERIOD: u32 = 25;
pub(crate) const PRIORITY_CONNECTIONS: u32 = 128;
/// Numbers of harts.
pub(crate) const HARTS: [u32; 3] = [1, 2, 4];

/// A closed loop of 1 × 1 on one connection of the first model, to be changed.
const PLAIN: Load = Load {
    model: 0,
    connections: 1,
    n: 1,
    levels: 1,
    period: 0,
    millis: CLOSED,
    harts: 1,
    shift: 0,
    by_clock: false,
};

/// At saturation: how long is measured, the orders of the matrices with their clocks for a period of 100 ms, and numbers of
/// connections. By these clocks a hart answers what some 50 to 80 connections ask for; with half the period an instruction
/// takes half as long.
pub(crate) const SATURATED: u32 = 1_000;
pub(crate) const CLOCKS: [(u32, u32); 5] = [(8, 5), (20, 3), (12, 4), (15, 4), (1, 5)];
pub(crate) const PERIODS: [u32; 2] = [100, 50];
const SATURATING: [u32; 9] = [1, 4, 8, 16, 32, 48, 64, 96, 128];
/// Coroutines on both sides, and threads.
pub(crate) const COMPARED: [usize; 2] = [0, 3];
/// The published points with priorities: connections, levels, order, period, numbers of harts, and our clock.
pub(crate) const LEVELS_8: Levels = Levels {
    connections: 128,
    levels: 8,
    n: 20,
    period: 50,
    harts: &[1, 2, 3, 4],
    shift: 3,
};
/// Eight connections of eight levels, and of four. The period is not published; with this one they ask for more than two harts
/// do.
pub(crate) const FEW: Levels = Levels {
    connections: 8,
    levels: 8,
    n: 12,
    period: 5,
    harts: &[2, 4],
    shift: 5,
};
pub(crate) const FEW_OF_4: Levels = Levels { levels: 4, ..FEW };
/// In a closed loop, by harts.
pub(crate) const SCALING_CONNECTIONS: u32 = 64;
pub(crate) const SCALING_HARTS: [u32; 4] = [1, 2, 3, 4];

/// Connections of several levels on several numbers of harts.
#[derive(Clone, Copy)]
pub(crate) struct Levels {
    pub(crate) connections: u32,
    pub(crate) levels: u32,
    pub(crate) n: u32,
    pub(crate) period: u32,
    pub(crate) harts: &'static [u32],
    pub(crate) shift: u32,
}

impl Levels {
    /// The point of a model.
    pub(crate) fn load(&self, model: usize, harts: u32) -> Load {
        Load {
            model,
            connections: self.connections,
            n: self.n,
            levels: self.levels,
            period: self.period,
            millis: SATURATED,
            harts,
            shift: self.shift,
            by_clock: false,
        }
    }

    fn loads(self) -> impl Iterator<Item = Load> {
        let of_harts = move |&harts| COMPARED.map(|model| self.load(model, harts));
        self.harts.iter().flat_map(of_harts)
    }
}

/// A closed loop on so many harts.
pub(crate) fn scaling(model: usize, harts: u32) -> Load {
    Load {
        model,
        connections: SCALING_CONNECTIONS,
        n: 20,
        harts,
        ..PLAIN
    }
}

/// The papers' figures, most telling first.
pub(crate) fn saturation() -> Vec<Load> {
    let mut plan: Vec<Load> = SCALING_HARTS
        .into_iter()
        .flat_map(|harts| COMPARED.map(|model| scaling(model, harts)))
        .collect();
    let over_connections = |(n, shift), period| {
        SATURATING.into_iter().flat_map(move |connections| {
            COMPARED.map(|model| Load {
                model,
                connections,
                n,
                period,
                millis: SATURATED,
                shift: shift - u32::from(period == 50),
                ..PLAIN
            })
        })
    };
    let all = PERIODS
        .into_iter()
        .flat_map(|period| CLOCKS.map(|clock| (clock, period)));
    let mut all = all.map(|(clock, period)| over_connections(clock, period));
    plan.extend(all.next().into_iter().flatten());
    plan.extend(FEW.loads().chain(FEW_OF_4.loads()));
    plan.extend(LEVELS_8.loads());
    plan.extend(all.flatten());
    plan
}

fn models(load: Load) -> impl Iterator<Item = Load> {
    (0..MODELS.len()).map(move |model| Load { model, ..load })
}

fn closed(connections: &[u32], orders: &[u32]) -> Vec<Load> {
    let mut plan = Vec::new();
    for &n in orders {
        for &connections in connections {
            plan.extend(models(Load {
                connections,
                n,
                ..PLAIN
            }));
        }
    }
    plan
}

fn open(connections: &[u32], orders: &[u32], period: u32) -> Vec<Load> {
    let open = closed(connections, orders).into_iter();
    let millis = OPEN;
    open.map(|load| Load {
        period,
        millis,
        ..load
    })
    .collect()
}

fn memory() -> Vec<Load> {
    let of = |connections| {
        models(Load {
            connections,
            millis: MEMORY,
            ..PLAIN
        })
    };
    let all = [FEW_CONNECTIONS, MANY_CONNECTIONS]
        .into_iter()
        .chain(MOST_CONNECTIONS);
    all.flat_map(of).collect()
}

/// The shape of what is published.
pub(crate) fn published() -> Vec<Load> {
    let plan = open(&CONNECTIONS, &[PUBLISHED_N], PUBLISHED_PERIOD);
    let priorities = HARTS.into_iter().map(|harts| Load {
        connections: PUBLISHED_PRIORITY_CONNECTIONS,
        n: PUBLISHED_N,
        levels: 8,
        period: PUBLISHED_PRIORITY_PERIOD,
        millis: OPEN,
        harts,
        ..PLAIN
    });
    plan.into_iter().chain(priorities).collect()
}

/// Connections of several levels.
fn priorities(harts: u32, levels: u32) -> impl Iterator<Item = Load> {
    models(Load {
        connections: PRIORITY_CONNECTIONS,
        n: 20,
        levels,
        period: PRIORITY_PERIOD,
        millis: OPEN,
        harts,
        ..PLAIN
    })
}

/// A closed loop on several harts.
fn harts(harts: u32) -> impl Iterator<Item = Load> {
    let of = move |connections| {
        models(Load {
            connections,
            n: 20,
            harts,
            ..PLAIN
        })
    };
    [16, 64, 128].into_iter().flat_map(of)
}

/// All of the issue, what is most telling first.
pub(crate) fn all() -> Vec<Load> {
    let mut plan = memory();
    plan.extend(closed(&CONNECTIONS, &[1, 20]));
    plan.extend(closed(&CONNECTIONS, &[8, 12]));
    plan.extend(HARTS.into_iter().flat_map(|harts| priorities(harts, 8)));
    plan.extend(open(&CONNECTIONS, &[20], 100));
    plan.extend(open(&CONNECTIONS, &[20], 50));
    plan.extend([2, 4].into_iter().flat_map(harts));
    plan.extend(HARTS.into_iter().flat_map(|harts| priorities(harts, 4)));
    plan.extend(open(&CONNECTIONS, &[1, 8, 12], 100));
    plan.extend(open(&CONNECTIONS, &[1, 8, 12], 50));
    plan.extend(published());
    plan
}

/// Some of it: minutes.
pub(crate) fn quick() -> Vec<Load> {
    let connections = [1, 16, 64];
    let mut plan = memory();
    plan.retain(|load| !MOST_CONNECTIONS.contains(&load.connections));
    plan.extend(closed(&connections, &[1, 20]));
    plan.extend(open(&connections, &[20], 100));
    plan.extend(priorities(1, 8));
    plan
}

/// By the host's clock: some ten minutes.
pub(crate) fn by_clock() -> Vec<Load> {
    let connections = [1, 4, 16, 64, 128];
    let mut plan = Vec::new();
    for harts in [1, 2] {
        for load in closed(&connections, &[20])
            .into_iter()
            .chain(open(&connections, &[20], 100))
        {
            plan.push(Load { harts, ..load });
        }
        plan.extend(priorities(harts, 8));
    }
    for load in &mut plan {
        load.by_clock = true;
        load.millis = 2_000;
    }
    plan
}

/// With the clients on the host, by its clock: some four minutes.
pub(crate) fn from_host() -> Vec<Load> {
    let connections = [1, 16, 64, 128];
    let plan = closed(&connections, &[20]).into_iter();
    let mut plan: Vec<Load> = plan.chain(open(&connections, &[20], 100)).collect();
    for load in &mut plan {
        load.by_clock = true;
        load.millis = 2_000;
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_point_is_measured_twice() {
        for plan in [all(), quick(), saturation(), by_clock(), from_host()] {
            for (at, load) in plan.iter().enumerate() {
                assert!(!plan[..at].contains(load), "{load}");
            }
        }
    }

    #[test]
    fn the_quick_plan_is_part_of_all() {
        let all = all();
        assert!(quick().iter().all(|load| all.contains(load)));
    }
}
