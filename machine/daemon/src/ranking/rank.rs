//! The ranks of the vCPUs of one CPU: pure logic, without state and without system calls.
//!
//! ```text
//!  potential of each vCPU       2        2        40       64 (absent)
//!  classes, most urgent first   └── 1 ───┘        0
//!  band                         1        1        0        0
//! ```
//!
//! * vCPUs of equal potential form a *class*. The least urgent class has band 0: its threads keep
//!   their own policies and share the remaining time with each other and with all other programs.
//!   Each class above is elevated, one band higher than the next. On a CPU with one class no vCPU
//!   is elevated.
//! * Elevation takes time from all programs on the CPU, registered or not. So a vCPU is elevated
//!   only if a vCPU of *another user* is less urgent, unless its user is trusted: a user cannot
//!   create a contest with a less urgent process of its own.
//! * If the configuration gives *bystanders* (programs that are not registered) a level, they count
//!   as a class that is always present: vCPUs more urgent than it are elevated, those at or below
//!   it are not.
//! * The thresholds of a [`Standing`] are the levels between which a vCPU may move without changing
//!   the order, even if the others move within theirs: two neighbours that may both move share the
//!   levels between them.
//!
//! O(n) for the n vCPUs of one CPU, no allocation beyond the result's: levels are few, so they are
//! counted first.

use upshift_board::{NO_LEVEL, Standing};

/// Number of bands above 0; further classes share the highest.
pub const BANDS: u8 = 16;

/// A vCPU to be ranked, after ceilings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contender {
    /// Level by which it is ranked; [`NO_LEVEL`]: absent.
    pub potential: u8,
    /// Level of its runnable work; [`NO_LEVEL`]: it sleeps.
    pub runnable: u8,
    /// Its user.
    pub user: u32,
    /// Whether it is elevated above programs of its own user, too.
    pub trusted: bool,
}

/// Summary of the vCPUs of one CPU, by level.
struct Summary {
    /// Bit L: at least one vCPU has potential L.
    present: u64,
    /// Bit L: two or more vCPUs have.
    crowded: u64,
    /// The most urgent runnable level.
    best: u8,
    contenders: usize,
    bystanders: Option<u8>,
    /// Users of the vCPUs that are less urgent than each level.
    below: [Users; NO_LEVEL as usize],
}

/// Users of some vCPUs.
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

/// Computes the standing of each contender, in their order.
pub fn rank(contenders: &[Contender], bystanders: Option<u8>, standings: &mut Vec<Standing>) {
    let mut summary = Summary {
        present: 0,
        crowded: 0,
        best: NO_LEVEL,
        contenders: contenders.len(),
        bystanders,
        below: [Users::None; NO_LEVEL as usize],
    };
    let mut users = summary.below;
    for contender in contenders {
        if let Some(users) = users.get_mut(usize::from(contender.potential)) {
            *users = users.and(Users::One(contender.user));
        }
    }
    for level in (1..users.len()).rev() {
        summary.below[level - 1] = summary.below[level].and(users[level]);
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
    fn standing(&self, own: &Contender) -> Standing {
        let level = own.potential;
        let outranked = self.best < own.runnable.min(level);
        if level >= NO_LEVEL {
            // A vCPU that is not alone rings when it appears.
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
                .map_or(0, |other| self.last_of(other as u8, level) + 1);
            let fall = match below.trailing_zeros() as u8 {
                NO_LEVEL => NO_LEVEL,
                other => self.last_before(level, other),
            };
            (rise, fall)
        };
        Standing {
            rise,
            // An absent vCPU competes with none.
            fall,
            band: if self.may_rise(own) {
                self.band(level)
            } else {
                0
            },
            outranked,
        }
    }

    /// Whether the vCPUs of this level ring for every change, or never change.
    fn is_fixed(&self, level: u8) -> bool {
        self.crowded & 1 << level != 0 || self.bystanders == Some(level)
    }

    /// Returns the last level between two neighbours that is left to the more urgent one, `other`,
    /// for `own`, which may move.
    fn last_of(&self, other: u8, own: u8) -> u8 {
        if self.is_fixed(other) {
            other
        } else {
            (other + own - 1) / 2
        }
    }

    /// The same, for the more urgent one.
    fn last_before(&self, own: u8, other: u8) -> u8 {
        if self.is_fixed(other) {
            other - 1
        } else {
            (own + other - 1) / 2
        }
    }

    fn may_rise(&self, own: &Contender) -> bool {
        let below = self.below[usize::from(own.potential)];
        own.trusted || self.bystanders.is_some() || below.has_other_than(own.user)
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

/// Returns the contender to run: of the most urgent runnable ones the first from `turn` on,
/// cyclically.
pub fn winner(contenders: &[Contender], turn: usize) -> Option<usize> {
    let best = contenders
        .iter()
        .map(|contender| contender.runnable)
        .min()?;
    if best >= NO_LEVEL {
        return None;
    }
    let count = contenders.len();
    (0..count)
        .map(|step| (turn + step) % count)
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

    /// Creates a contender of an untrusted user.
    fn of(user: u32, level: u8) -> Contender {
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
    fn the_more_urgent_is_elevated_and_the_other_keeps_its_policy() {
        let standings = ranked(&[awake(2), awake(40)], None);
        assert_eq!(
            standings
                .iter()
                .map(|standing| standing.band)
                .collect::<Vec<_>>(),
            [1, 0]
        );
        // They share the levels between them, or both could move past each other without a ring.
        assert_eq!((standings[0].rise, standings[0].fall), (0, 20));
        assert_eq!((standings[1].rise, standings[1].fall), (21, NO_LEVEL));
        let standings = ranked(&[awake(2), awake(40), awake(40)], None);
        assert_eq!((standings[0].rise, standings[0].fall), (0, 39));
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
        for standing in standings {
            assert_eq!((standing.band, standing.rise, standing.fall), (0, 7, 7));
        }
        let standings = ranked(&[awake(7), awake(7), awake(50)], None);
        assert_eq!((standings[0].band, standings[1].band), (1, 1));
    }

    #[test]
    fn no_user_is_elevated_by_a_contest_with_itself() {
        let bands = |contenders: &[Contender]| {
            let standings = ranked(contenders, None);
            standings
                .iter()
                .map(|standing| standing.band)
                .collect::<Vec<_>>()
        };
        assert_eq!(bands(&[of(7, 40), of(7, 63)]), [0, 0]);
        assert_eq!(bands(&[of(7, 40), of(8, 63)]), [1, 0]);
        assert_eq!(bands(&[of(7, 40), of(8, 40), of(7, 63)]), [0, 1, 0]);
        assert_eq!(
            bands(&[of(7, 2), of(7, 5), of(8, 9), of(8, 60)]),
            [3, 2, 0, 0]
        );
        let trusted = Contender {
            trusted: true,
            ..of(7, 40)
        };
        assert_eq!(bands(&[trusted, of(7, 63)]), [1, 0]);
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
    fn equal_winners_take_turns() {
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

    /// Creates contenders of three untrusted users.
    fn of_another() -> impl Strategy<Value = Contender> {
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
                        // both are at the top.
                        let exempt = bystanders.is_some_and(|level| a.potential >= level) || x.band == BANDS;
                        prop_assert!(x.band > y.band || exempt);
                    }
                }
            }
            if bystanders.is_none() {
                let least = contenders.iter().map(|contender| contender.potential).filter(|&level| level < NO_LEVEL).max();
                for (contender, standing) in contenders.iter().zip(&standings) {
                    prop_assert!(Some(contender.potential) != least || standing.band == 0);
                }
            }
        }

        /// The same for any number of moves of several vCPUs.
        #[test]
        fn vcpus_that_stay_within_their_thresholds_change_no_other(
            mut contenders in prop::collection::vec(prop_oneof![contender(), of_another()], 1..12),
            bystanders in prop::option::of(0u8..64),
            moves in prop::collection::vec((any::<prop::sample::Index>(), 0..64u8), 1..40),
        ) {
            let before = ranked(&contenders, bystanders);
            for (which, level) in moves {
                let index = which.index(contenders.len());
                if !before[index].requires_ring(level) {
                    (contenders[index].potential, contenders[index].runnable) = (level, level);
                }
            }
            let after = ranked(&contenders, bystanders);
            for (x, y) in before.iter().zip(&after) {
                prop_assert_eq!(x.band, y.band);
            }
        }

        /// Within the thresholds, no band changes.
        #[test]
        fn a_process_that_stays_within_its_thresholds_changes_no_other(
            contenders in prop::collection::vec(prop_oneof![contender(), of_another()], 1..12),
            bystanders in prop::option::of(0u8..64),
            which in any::<prop::sample::Index>(),
            level in 0..64u8,
        ) {
            let index = which.index(contenders.len());
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
