//! Ranks the vCPUs of one CPU. A vCPU is the set of run queues that a worker thread of a process
//! serves; its *potential* is the level of its most urgent coroutine. The functions have no state
//! and make no system calls.
//!
//! ```text
//!  potential of each vCPU       2        2        40       64 (absent)
//!  classes, most urgent first   └── 1 ───┘        0
//!  band                         1        1        0        0
//! ```
//!
//! * vCPUs of equal potential form a *class*. The least urgent class has band 0, so its threads
//!   keep their own policies and share the remaining time with each other and with all other
//!   programs. Each more urgent class is elevated, one band above the next class. On a CPU with one
//!   class, no vCPU is elevated.
//! * Elevation takes time from all programs on the CPU, registered or not. So a vCPU of a user that
//!   is not trusted is elevated only if a vCPU of *another user* is less urgent. Otherwise, a user
//!   could start a less urgent process in order to have another process elevated.
//! * If the configuration gives a level to *bystanders* (programs that are not registered), they
//!   count as a class that is always present. More urgent vCPUs are elevated, and all other vCPUs
//!   are not.
//! * The thresholds of a [`Standing`] are the levels between which a vCPU may move without changing
//!   the order, even if other vCPUs move within their thresholds. Therefore two neighbours that may
//!   both move divide the levels between them.
//!
//! The cost for n vCPUs is O(n), by counting the vCPUs of each level. Only the result is allocated.

use upshift_board::{NO_LEVEL, Standing};

/// Number of bands above 0; further classes share the highest band.
pub const BANDS: u8 = 16;

/// A vCPU to be ranked, after ceilings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contender {
    /// Level by which the vCPU is ranked; [`NO_LEVEL`] if it is absent.
    pub potential: u8,
    /// Most urgent level of its runnable work; [`NO_LEVEL`] while it sleeps.
    pub runnable: u8,
    /// User of the process.
    pub user: u32,
    /// Set if the vCPU is elevated above programs of its own user as well.
    pub trusted: bool,
}

/// Summary of the vCPUs of one CPU, by level.
struct Summary {
    /// Bit L: at least one vCPU has potential L, or the bystanders have level L.
    present: u64,
    /// Bit L: at least two vCPUs, or the bystanders and a vCPU, are at level L.
    crowded: u64,
    /// Most urgent level of the runnable vCPUs.
    best: u8,
    contenders: usize,
    bystanders: Option<u8>,
    /// Users of the vCPUs that are less urgent than level L, by L.
    users_below: [Users; NO_LEVEL as usize],
}

/// The users of several vCPUs. If there are several users, it does not matter which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Users {
    None,
    One(u32),
    Several,
}

impl Users {
    fn and(self, other: Users) -> Users {
        match (self, other) {
            (Users::None, users) | (users, Users::None) => users,
            (Users::One(a), Users::One(b)) if a == b => self,
            _ => Users::Several,
        }
    }

    fn has_other_than(self, user: u32) -> bool {
        match self {
            Users::None => false,
            Users::One(only) => only != user,
            Users::Several => true,
        }
    }
}

/// Computes the standing of each contender, in the order of `contenders`.
pub fn rank(contenders: &[Contender], bystanders: Option<u8>, standings: &mut Vec<Standing>) {
    let mut summary = Summary {
        present: 0,
        crowded: 0,
        best: NO_LEVEL,
        contenders: contenders.len(),
        bystanders,
        users_below: [Users::None; NO_LEVEL as usize],
    };
    let mut users = summary.users_below;
    for contender in contenders {
        if let Some(users) = users.get_mut(usize::from(contender.potential)) {
            *users = users.and(Users::One(contender.user));
        }
    }
    for level in (1..users.len()).rev() {
        summary.users_below[level - 1] = summary.users_below[level].and(users[level]);
    }
    let potentials = contenders.iter().map(|contender| contender.potential);
    for level in potentials
        .chain(bystanders)
        .filter(|&level| level < NO_LEVEL)
    {
        summary.crowded |= summary.present & 1 << level;
        summary.present |= 1 << level;
    }
    summary.best = contenders
        .iter()
        .map(|contender| contender.runnable)
        .min()
        .unwrap_or(NO_LEVEL);
    standings.clear();
    standings.extend(
        contenders
            .iter()
            .map(|contender| summary.standing(contender)),
    );
}

impl Summary {
    fn standing(&self, contender: &Contender) -> Standing {
        let level = contender.potential;
        let outranked = self.best < contender.runnable.min(level);
        if level >= NO_LEVEL {
            // An absent vCPU must ring when it appears, unless it is alone.
            let alone = self.contenders == 1 && self.bystanders.is_none();
            return Standing {
                rise: if alone { 0 } else { NO_LEVEL },
                outranked,
                ..Standing::UNCONTESTED
            };
        }
        let bit = 1u64 << level;
        let (rise, fall) = if self.crowded & bit != 0 {
            (level, level)
        } else {
            let above = self.present & (bit - 1);
            let below = self.present & !(bit | (bit - 1));
            let nearest_above = u64::BITS - above.leading_zeros();
            let rise = nearest_above
                .checked_sub(1)
                .map_or(0, |other| self.fall_of_neighbour(other as u8, level) + 1);
            let fall = match below.trailing_zeros() as u8 {
                NO_LEVEL => NO_LEVEL,
                other => self.fall_before(other, level),
            };
            (rise, fall)
        };
        Standing {
            rise,
            fall,
            band: if self.may_rise(contender) {
                self.band(level)
            } else {
                0
            },
            outranked,
        }
    }

    /// Returns whether the vCPUs of this level ring for every change, or the level belongs to the
    /// bystanders, which never change.
    fn is_fixed(&self, level: u8) -> bool {
        self.crowded & 1 << level != 0 || self.bystanders == Some(level)
    }

    /// Returns the least urgent level to which the more urgent neighbour at level `neighbour` may
    /// fall. The vCPU at `level` may move, too.
    fn fall_of_neighbour(&self, neighbour: u8, level: u8) -> u8 {
        if self.is_fixed(neighbour) {
            neighbour
        } else {
            (neighbour + level - 1) / 2
        }
    }

    /// Returns the least urgent level to which the vCPU at `level` may fall. Its less urgent
    /// neighbour is at level `neighbour`.
    fn fall_before(&self, neighbour: u8, level: u8) -> u8 {
        if self.is_fixed(neighbour) {
            neighbour - 1
        } else {
            (level + neighbour - 1) / 2
        }
    }

    fn may_rise(&self, contender: &Contender) -> bool {
        let users_below = self.users_below[usize::from(contender.potential)];
        contender.trusted || self.bystanders.is_some() || users_below.has_other_than(contender.user)
    }

    /// Returns the number of classes below `level`, bystanders included, at most [`BANDS`].
    fn band(&self, level: u8) -> u8 {
        let below = self.present & !(1u64 << level | ((1u64 << level) - 1));
        let classes = match self.bystanders {
            Some(bystanders) if level >= bystanders => 0,
            // vCPUs at or below the bystanders are in one class with them.
            Some(bystanders) => (below & ((1 << bystanders) - 1)).count_ones() + 1,
            None => below.count_ones(),
        };
        classes.min(u32::from(BANDS)) as u8
    }
}

/// Returns the index of the contender to run, which is the first of the most urgent runnable
/// contenders, searched cyclically from index `start`; `None` if no contender is runnable.
pub fn winner(contenders: &[Contender], start: usize) -> Option<usize> {
    let best = contenders
        .iter()
        .map(|contender| contender.runnable)
        .min()?;
    if best >= NO_LEVEL {
        return None;
    }
    let count = contenders.len();
    (0..count)
        .map(|step| (start + step) % count)
        .find(|&index| contenders[index].runnable == best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn awake(level: u8) -> Contender {
        Contender {
            potential: level,
            runnable: level,
            user: 0,
            trusted: true,
        }
    }

    fn untrusted(user: u32, level: u8) -> Contender {
        Contender {
            user,
            trusted: false,
            ..awake(level)
        }
    }

    fn asleep(level: u8) -> Contender {
        Contender {
            potential: level,
            runnable: NO_LEVEL,
            ..awake(level)
        }
    }

    fn ranked(contenders: &[Contender], bystanders: Option<u8>) -> Vec<Standing> {
        let mut standings = Vec::new();
        rank(contenders, bystanders, &mut standings);
        standings
    }

    #[test]
    fn a_vcpu_that_is_alone_never_rings() {
        assert_eq!(ranked(&[awake(0)], None), [Standing::UNCONTESTED]);
        assert_eq!(ranked(&[asleep(NO_LEVEL)], None), [Standing::UNCONTESTED]);
    }

    #[test]
    fn the_more_urgent_vcpu_is_elevated_and_the_other_keeps_its_policy() {
        let standings = ranked(&[awake(2), awake(40)], None);
        assert_eq!(
            standings
                .iter()
                .map(|standing| standing.band)
                .collect::<Vec<_>>(),
            [1, 0]
        );
        // The two vCPUs divide the levels between them. Otherwise both could move, and change
        // places without a ring.
        assert_eq!((standings[0].rise, standings[0].fall), (0, 20));
        assert_eq!((standings[1].rise, standings[1].fall), (21, NO_LEVEL));
        let standings = ranked(&[awake(2), awake(40), awake(40)], None);
        assert_eq!((standings[0].rise, standings[0].fall), (0, 39));
        assert!(!standings[0].outranked && standings[1].outranked);
    }

    #[test]
    fn a_sleeping_vcpu_keeps_its_band() {
        let standings = ranked(&[asleep(2), awake(40)], None);
        assert_eq!(standings[0].band, 1);
        assert!(!standings[1].outranked);
    }

    #[test]
    fn vcpus_of_equal_level_share_a_band_and_ring_for_every_change() {
        let standings = ranked(&[awake(7), awake(7)], None);
        for standing in standings {
            assert_eq!((standing.band, standing.rise, standing.fall), (0, 7, 7));
        }
        let standings = ranked(&[awake(7), awake(7), awake(50)], None);
        assert_eq!((standings[0].band, standings[1].band), (1, 1));
    }

    #[test]
    fn no_vcpu_is_elevated_above_vcpus_of_its_own_user_only() {
        let bands = |contenders: &[Contender]| {
            let standings = ranked(contenders, None);
            standings
                .iter()
                .map(|standing| standing.band)
                .collect::<Vec<_>>()
        };
        assert_eq!(bands(&[untrusted(7, 40), untrusted(7, 63)]), [0, 0]);
        assert_eq!(bands(&[untrusted(7, 40), untrusted(8, 63)]), [1, 0]);
        assert_eq!(
            bands(&[untrusted(7, 40), untrusted(8, 40), untrusted(7, 63)]),
            [0, 1, 0]
        );
        assert_eq!(
            bands(&[
                untrusted(7, 2),
                untrusted(7, 5),
                untrusted(8, 9),
                untrusted(8, 60)
            ]),
            [3, 2, 0, 0]
        );
        let trusted = Contender {
            trusted: true,
            ..untrusted(7, 40)
        };
        assert_eq!(bands(&[trusted, untrusted(7, 63)]), [1, 0]);
    }

    #[test]
    fn bystanders_count_as_a_class() {
        let standings = ranked(&[awake(2)], Some(32));
        assert_eq!((standings[0].band, standings[0].fall), (1, 31));
        let standings = ranked(&[awake(40), awake(2), awake(50)], Some(32));
        assert_eq!(
            standings
                .iter()
                .map(|standing| standing.band)
                .collect::<Vec<_>>(),
            [0, 1, 0]
        );
    }

    #[test]
    fn an_absent_vcpu_rings_when_it_appears_among_others() {
        let standings = ranked(&[asleep(NO_LEVEL), awake(40)], None);
        assert!(standings[0].requires_ring(63) && !standings[0].requires_ring(NO_LEVEL));
        assert_eq!(
            standings[1],
            Standing {
                band: 0,
                ..Standing::UNCONTESTED
            }
        );
    }

    #[test]
    fn vcpus_of_equal_level_take_turns() {
        let contenders = [awake(7), awake(9), awake(7)];
        assert_eq!(winner(&contenders, 0), Some(0));
        assert_eq!(winner(&contenders, 1), Some(2));
        assert_eq!(winner(&contenders, 3), Some(0));
        assert_eq!(winner(&[asleep(3)], 0), None);
        assert_eq!(winner(&[], 0), None);
    }

    fn contender() -> impl Strategy<Value = Contender> {
        (0..=NO_LEVEL, any::<bool>())
            .prop_map(|(level, sleeps)| if sleeps { asleep(level) } else { awake(level) })
    }

    /// Generates contenders of three untrusted users.
    fn untrusted_contender() -> impl Strategy<Value = Contender> {
        (contender(), 0..3u32).prop_map(|(contender, user)| Contender {
            user,
            trusted: false,
            ..contender
        })
    }

    proptest! {
        #[test]
        fn bands_follow_the_levels(
            contenders in prop::collection::vec(contender(), 1..20),
            bystanders in prop::option::of(0u8..64),
        ) {
            let standings = ranked(&contenders, bystanders);
            for (a, x) in contenders.iter().zip(&standings) {
                for (b, y) in contenders.iter().zip(&standings) {
                    if a.potential == b.potential {
                        prop_assert_eq!(x.band, y.band);
                    }
                    if a.potential < b.potential && b.potential < NO_LEVEL {
                        // A more urgent level has a higher band, unless neither may be elevated or
                        // both have the highest band.
                        let exempt = bystanders.is_some_and(|level| a.potential >= level) || x.band == BANDS;
                        prop_assert!(x.band > y.band || exempt);
                    }
                }
            }
            if bystanders.is_none() {
                let least_urgent = contenders.iter().map(|contender| contender.potential).filter(|&level| level < NO_LEVEL).max();
                for (contender, standing) in contenders.iter().zip(&standings) {
                    prop_assert!(Some(contender.potential) != least_urgent || standing.band == 0);
                }
            }
        }

        /// Moves of several vCPUs within their thresholds change no band.
        #[test]
        fn vcpus_that_stay_within_their_thresholds_change_no_band(
            mut contenders in prop::collection::vec(prop_oneof![contender(), untrusted_contender()], 1..12),
            bystanders in prop::option::of(0u8..64),
            moves in prop::collection::vec((any::<prop::sample::Index>(), 0..64u8), 1..40),
        ) {
            let before = ranked(&contenders, bystanders);
            for (selected, level) in moves {
                let index = selected.index(contenders.len());
                if !before[index].requires_ring(level) {
                    (contenders[index].potential, contenders[index].runnable) = (level, level);
                }
            }
            let after = ranked(&contenders, bystanders);
            for (x, y) in before.iter().zip(&after) {
                prop_assert_eq!(x.band, y.band);
            }
        }

        /// A move of one vCPU within its thresholds changes no band.
        #[test]
        fn a_vcpu_that_stays_within_its_thresholds_changes_no_band(
            contenders in prop::collection::vec(prop_oneof![contender(), untrusted_contender()], 1..12),
            bystanders in prop::option::of(0u8..64),
            selected in any::<prop::sample::Index>(),
            level in 0..64u8,
        ) {
            let index = selected.index(contenders.len());
            let before = ranked(&contenders, bystanders);
            if !before[index].requires_ring(level) {
                let mut moved = contenders.clone();
                moved[index] = Contender {
                    potential: level,
                    runnable: level,
                    ..moved[index]
                };
                let after = ranked(&moved, bystanders);
                for (x, y) in before.iter().zip(&after) {
                    prop_assert_eq!(x.band, y.band);
                }
            }
        }
    }
}
