//! Lists the points of the evaluation: the machines and loads that are measured.

use super::point::{Load, MODELS};

/// Numbers of connections in closed loops.
const CONNECTIONS: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 96, 128];

/// Time for which a closed loop is measured, in milliseconds of the machine.
pub(crate) const CLOSED_MILLIS: u32 = 200;
/// Time for which points that only show the memory are measured, in milliseconds of the machine.
pub(crate) const MEMORY_MILLIS: u32 = 20;
/// Numbers of connections, from whose difference in memory the memory of a connection is computed.
pub(crate) const FEW_CONNECTIONS: u32 = 16;
pub(crate) const MANY_CONNECTIONS: u32 = 64;

/// Numbers of connections whose memory is on the page: the published maxima of KTUT and KCUC, and
/// nearly as many as the sockets allow for both ends.
pub(crate) const MOST_CONNECTIONS: [u32; 3] = [186, 385, 500];

/// A closed loop of 1 × 1 on one connection of the first model: the base of the other loads.
const PLAIN: Load = Load {
    model: 0,
    connections: 1,
    n: 1,
    levels: 1,
    period: 0,
    millis: CLOSED_MILLIS,
    harts: 1,
    shift: 0,
};

/// Duration of a measurement at saturation, in milliseconds of the machine.
pub(crate) const SATURATED_MILLIS: u32 = 1_000;
/// Orders of the published matrices, each with the clock for a period of 100 ms: [`Load::shift`].
/// With this clock a hart can answer the requests of about 50 to 80 connections. With half the
/// period an instruction takes half the time.
pub(crate) const CLOCKS: [(u32, u32); 5] = [(8, 5), (20, 3), (12, 4), (15, 4), (1, 5)];
/// Milliseconds between two requests of a connection in the published figures.
pub(crate) const PERIODS: [u32; 2] = [100, 50];
/// Numbers of connections at saturation.
const SATURATING: [u32; 10] = [1, 2, 4, 8, 16, 32, 48, 64, 96, 128];
/// The order of all matrices in the published raw data.
pub(crate) const RAW_ORDER: u32 = 15;
/// The period in the published raw data over connections, in milliseconds.
pub(crate) const RAW_PERIOD: u32 = 100;
/// The compared models: coroutines on both sides, and threads on both sides.
pub(crate) const COMPARED: [usize; 2] = [0, 3];
/// The published points with priorities, with the clock of this evaluation.
pub(crate) const LEVELS_8: Levels = Levels {
    connections: 128,
    levels: 8,
    n: 20,
    period: 50,
    harts: &[1, 2, 3, 4],
    shift: 3,
};
/// Eight connections of eight levels, and of four. The period is not published; with this clock the
/// connections request more than two harts can answer.
pub(crate) const FEW: Levels = Levels {
    connections: 8,
    levels: 8,
    n: 12,
    period: 5,
    harts: &[2, 4],
    shift: 4,
};
pub(crate) const FEW_OF_4: Levels = Levels { levels: 4, ..FEW };
/// The points of the raw data with several levels.
pub(crate) const RAW_LEVELS: Levels = Levels {
    connections: 64,
    levels: 8,
    n: RAW_ORDER,
    period: 50,
    harts: &[1, 2, 3, 4],
    shift: 4,
};
/// Closed loops for each number of harts.
pub(crate) const SCALING_CONNECTIONS: u32 = 64;
pub(crate) const SCALING_HARTS: [u32; 4] = [1, 2, 3, 4];

/// Loads of several levels that differ only in model and number of harts. See [`Load`] for the
/// units.
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
    pub(crate) fn load(&self, model: usize, harts: u32) -> Load {
        Load {
            model,
            connections: self.connections,
            n: self.n,
            levels: self.levels,
            period: self.period,
            millis: SATURATED_MILLIS,
            harts,
            shift: self.shift,
        }
    }

    fn loads(self) -> impl Iterator<Item = Load> {
        let compared = move |&harts| COMPARED.map(|model| self.load(model, harts));
        self.harts.iter().flat_map(compared)
    }
}

pub(crate) fn scaling(model: usize, harts: u32) -> Load {
    Load {
        model,
        connections: SCALING_CONNECTIONS,
        n: 20,
        harts,
        ..PLAIN
    }
}

/// Returns loads over connections on one hart, for an order with its clock, and a period.
fn over_connections((n, shift): (u32, u32), period: u32) -> impl Iterator<Item = Load> {
    let compared =
        move |model: &usize| COMPARED.contains(model) || (n, period) == (RAW_ORDER, RAW_PERIOD);
    SATURATING.into_iter().flat_map(move |connections| {
        (0..MODELS.len()).filter(compared).map(move |model| Load {
            model,
            connections,
            n,
            period,
            millis: SATURATED_MILLIS,
            shift: shift - u32::from(period == 50),
            ..PLAIN
        })
    })
}

/// Returns the points of the papers' figures, the most important first.
pub(crate) fn saturation() -> Vec<Load> {
    let mut plan: Vec<Load> = SCALING_HARTS
        .into_iter()
        .flat_map(|harts| COMPARED.map(|model| scaling(model, harts)))
        .collect();
    let (first, others) = (CLOCKS[0], &CLOCKS[1..]);
    plan.extend(over_connections(first, PERIODS[0]));
    plan.extend(LEVELS_8.loads());
    plan.extend(FEW.loads().chain(FEW_OF_4.loads()));
    plan.extend(
        RAW_LEVELS
            .harts
            .iter()
            .map(|&harts| RAW_LEVELS.load(0, harts)),
    );
    plan.extend(
        others
            .iter()
            .flat_map(|&clock| over_connections(clock, PERIODS[0])),
    );
    plan.extend(
        CLOCKS
            .into_iter()
            .flat_map(|clock| over_connections(clock, PERIODS[1])),
    );
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

fn memory() -> Vec<Load> {
    let loads = |connections| {
        models(Load {
            connections,
            millis: MEMORY_MILLIS,
            ..PLAIN
        })
    };
    let all = [FEW_CONNECTIONS, MANY_CONNECTIONS]
        .into_iter()
        .chain(MOST_CONNECTIONS);
    all.flat_map(loads).collect()
}

/// Returns all other points, which count instructions on one hart, the most important first.
pub(crate) fn all() -> Vec<Load> {
    let mut plan = memory();
    plan.extend(closed(&CONNECTIONS, &[1, 20, 8, 12]));
    plan
}

/// Returns a part of the plan that takes minutes.
pub(crate) fn quick() -> Vec<Load> {
    let mut plan = memory();
    plan.retain(|load| !MOST_CONNECTIONS.contains(&load.connections));
    plan.extend(closed(&[1, 16, 64], &[1, 20]));
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_point_is_measured_twice() {
        for plan in [all(), quick(), saturation()] {
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
