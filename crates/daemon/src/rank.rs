//! Who ranks where on one CPU: pure logic, without memory of the past and without system calls.
//!
//! ```text
//!  potential of each vCPU       2        2        40       64 (absent)
//!  classes, most urgent first   └── 1 ───┘        0
//!  band                         1        1        0        0
//! ```
//!
//! * vCPUs of equal potential form a *class*. The least urgent class has band 0: its threads keep their own policies and
//!   share what is left, with each other and with everybody else on the machine. Each class above is elevated, one band
//!   higher than the next. A CPU with one class elevates nobody.
//! * If the configuration gives *bystanders* (programs that are not registered) a level, they count as a class that is
//!   always there: vCPUs more urgent than it are elevated, those at or below it are not.
//! * The thresholds of a [`Standing`] are the levels between which a vCPU may move without changing the order.
//!
//! O(n²) comparisons of bytes for the n vCPUs of one CPU, no allocation beyond the result's.

use upshift_board::{NOTHING, Standing};

/// Bands above 0; more classes than that share the highest.
pub(crate) const BANDS: u8 = 16;

/// One vCPU as the ranking sees it, after ceilings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entrant {
    /// By which it is ranked; [`NOTHING`]: absent.
    pub(crate) potential: u8,
    /// What it could run now; [`NOTHING`]: it sleeps.
    pub(crate) runnable: u8,
}

/// Standing of each entrant, in their order.
pub(crate) fn rank(entrants: &[Entrant], bystanders: Option<u8>, standings: &mut Vec<Standing>) {
    standings.clear();
    standings.extend((0..entrants.len()).map(|index| standing(entrants, index, bystanders)));
}

fn standing(entrants: &[Entrant], index: usize, bystanders: Option<u8>) -> Standing {
    let own = entrants[index];
    let others = || {
        let levels = entrants.iter().map(|entrant| entrant.potential);
        let levels = levels.enumerate().filter(move |&(at, _)| at != index);
        levels
            .map(|(_, level)| level)
            .filter(|&level| level < NOTHING)
            .chain(bystanders)
    };
    let outranked = entrants
        .iter()
        .any(|other| other.runnable < own.runnable.min(own.potential));
    if own.potential >= NOTHING {
        // Whoever is not alone says so when he appears.
        let alone = entrants.len() == 1 && bystanders.is_none();
        return Standing {
            rise: if alone { 0 } else { NOTHING },
            outranked,
            ..Standing::ALONE
        };
    }
    let level = own.potential;
    let (rise, fall) = if others().any(|other| other == level) {
        (level, level)
    } else {
        let above = others().filter(|&other| other < level).max();
        let below = others().filter(|&other| other > level).min();
        (
            above.map_or(0, |above| above + 1),
            below.map_or(NOTHING, |below| below - 1),
        )
    };
    Standing {
        rise,
        // An absent vCPU competes with nobody.
        fall,
        band: band(entrants, level, bystanders),
        outranked,
    }
}

/// How many classes lie below `level`, bystanders included, within [`BANDS`].
fn band(entrants: &[Entrant], level: u8, bystanders: Option<u8>) -> u8 {
    if bystanders.is_some_and(|bystanders| level >= bystanders) {
        return 0;
    }
    let mut below = 0u64;
    for entrant in entrants {
        let other = entrant.potential;
        let counts = bystanders.is_none_or(|bystanders| other < bystanders);
        if other > level && other < NOTHING && counts {
            below |= 1 << other;
        }
    }
    let classes = below.count_ones() as u8 + u8::from(bystanders.is_some());
    classes.min(BANDS)
}

/// The entrant to run: of the most urgent runnable ones that which comes first from `turn` on, cyclically.
pub(crate) fn winner(entrants: &[Entrant], turn: usize) -> Option<usize> {
    let best = entrants.iter().map(|entrant| entrant.runnable).min()?;
    if best >= NOTHING {
        return None;
    }
    let count = entrants.len();
    (0..count)
        .map(|step| (turn + step) % count)
        .find(|&index| entrants[index].runnable == best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn awake(level: u8) -> Entrant {
        Entrant {
            potential: level,
            runnable: level,
        }
    }

    fn asleep(level: u8) -> Entrant {
        Entrant {
            potential: level,
            runnable: NOTHING,
        }
    }

    fn ranked(entrants: &[Entrant], bystanders: Option<u8>) -> Vec<Standing> {
        let mut standings = Vec::new();
        rank(entrants, bystanders, &mut standings);
        standings
    }

    #[test]
    fn who_is_alone_is_left_alone() {
        assert_eq!(ranked(&[awake(0)], None), [Standing::ALONE]);
        assert_eq!(ranked(&[asleep(NOTHING)], None), [Standing::ALONE]);
    }

    #[test]
    fn the_more_urgent_is_elevated_and_the_other_keeps_its_policy() {
        let standings = ranked(&[awake(2), awake(40)], None);
        assert_eq!(
            standings.iter().map(|it| it.band).collect::<Vec<_>>(),
            [1, 0]
        );
        assert_eq!((standings[0].rise, standings[0].fall), (0, 39));
        assert_eq!((standings[1].rise, standings[1].fall), (3, NOTHING));
        assert!(!standings[0].outranked && standings[1].outranked);
    }

    #[test]
    fn a_sleeper_keeps_its_band() {
        let standings = ranked(&[asleep(2), awake(40)], None);
        assert_eq!(standings[0].band, 1);
        assert!(!standings[1].outranked);
    }

    #[test]
    fn equals_share_a_band_and_ring_for_every_change() {
        let standings = ranked(&[awake(7), awake(7)], None);
        for it in standings {
            assert_eq!((it.band, it.rise, it.fall), (0, 7, 7));
        }
        let standings = ranked(&[awake(7), awake(7), awake(50)], None);
        assert_eq!((standings[0].band, standings[1].band), (1, 1));
    }

    #[test]
    fn bystanders_count_as_a_class() {
        let standings = ranked(&[awake(2)], Some(32));
        assert_eq!((standings[0].band, standings[0].fall), (1, 31));
        let standings = ranked(&[awake(40), awake(2), awake(50)], Some(32));
        assert_eq!(
            standings.iter().map(|it| it.band).collect::<Vec<_>>(),
            [0, 1, 0]
        );
    }

    #[test]
    fn the_absent_ring_when_they_appear_among_others() {
        let standings = ranked(&[asleep(NOTHING), awake(40)], None);
        assert!(standings[0].wants_ring(63) && !standings[0].wants_ring(NOTHING));
        assert_eq!(
            standings[1],
            Standing {
                band: 0,
                ..Standing::ALONE
            }
        );
    }

    #[test]
    fn equal_winners_take_turns() {
        let entrants = [awake(7), awake(9), awake(7)];
        assert_eq!(winner(&entrants, 0), Some(0));
        assert_eq!(winner(&entrants, 1), Some(2));
        assert_eq!(winner(&entrants, 3), Some(0));
        assert_eq!(winner(&[asleep(3)], 0), None);
        assert_eq!(winner(&[], 0), None);
    }

    fn entrant() -> impl Strategy<Value = Entrant> {
        (0..=NOTHING, any::<bool>())
            .prop_map(|(level, sleeps)| if sleeps { asleep(level) } else { awake(level) })
    }

    proptest! {
        #[test]
        fn bands_follow_the_levels(
            entrants in prop::collection::vec(entrant(), 1..20),
            bystanders in prop::option::of(0u8..64),
        ) {
            let standings = ranked(&entrants, bystanders);
            for (a, x) in entrants.iter().zip(&standings) {
                for (b, y) in entrants.iter().zip(&standings) {
                    if a.potential == b.potential {
                        prop_assert_eq!(x.band, y.band);
                    }
                    if a.potential < b.potential && b.potential < NOTHING {
                        // Strictly more urgent means a strictly higher band, unless neither may be elevated or both are at the top.
                        let exempt = bystanders.is_some_and(|level| a.potential >= level) || x.band == BANDS;
                        prop_assert!(x.band > y.band || exempt);
                    }
                }
            }
            if bystanders.is_none() {
                let least = entrants.iter().map(|it| it.potential).filter(|&it| it < NOTHING).max();
                for (it, standing) in entrants.iter().zip(&standings) {
                    prop_assert!(Some(it.potential) != least || standing.band == 0);
                }
            }
        }

        /// The promise behind the thresholds: within them, nobody's band changes.
        #[test]
        fn who_stays_within_its_thresholds_changes_nobody(
            entrants in prop::collection::vec(entrant(), 1..12),
            bystanders in prop::option::of(0u8..64),
            which in any::<prop::sample::Index>(),
            level in 0..64u8,
        ) {
            let index = which.index(entrants.len());
            let before = ranked(&entrants, bystanders);
            if !before[index].wants_ring(level) {
                let mut moved = entrants.clone();
                moved[index] = awake(level);
                let after = ranked(&moved, bystanders);
                for (x, y) in before.iter().zip(&after) {
                    prop_assert_eq!(x.band, y.band);
                }
            }
        }
    }
}
