//! What follows from an alarm for users of which it was not found that they took a CPU.

use std::collections::HashSet;

/// What is known when all is examined that can be.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// It was found of some user that it took a CPU.
    pub(super) has_culprits: bool,
    /// The CPU stood still for the daemon, too.
    pub(super) stood_still: bool,
    /// Users that keep the scouts that examine them.
    pub(super) keepers: HashSet<u32>,
    /// Users whose threads end unseen, which explains it.
    pub(super) evasive: HashSet<u32>,
}

/// See the module.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Suspicion {
    None,
    /// These keep the daemon from seeing what they do, and are barred.
    Keepers(HashSet<u32>),
    Evasive(HashSet<u32>),
    /// It is taken in a way that is not known. Nothing was found of any user, so none is barred, and all rest.
    Rest,
}

impl Suspicion {
    /// Nothing follows from an observation that the daemon made late.
    pub(super) fn of(found: Findings) -> Suspicion {
        if found.stood_still {
            Suspicion::None
        } else if !found.keepers.is_empty() {
            Suspicion::Keepers(found.keepers)
        } else if found.has_culprits {
            Suspicion::None
        } else if !found.evasive.is_empty() {
            Suspicion::Evasive(found.evasive)
        } else {
            Suspicion::Rest
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_of_the_daemon_proves_nothing() {
        let (none, some) = (HashSet::new(), HashSet::from([1]));
        for has_culprits in [false, true] {
            for keepers in [&none, &some] {
                for evasive in [&none, &some] {
                    let found = |stood_still| Findings {
                        has_culprits,
                        stood_still,
                        keepers: keepers.clone(),
                        evasive: evasive.clone(),
                    };
                    assert_eq!(Suspicion::of(found(true)), Suspicion::None);
                    let suspicion = match (keepers.is_empty(), has_culprits, evasive.is_empty()) {
                        (false, _, _) => Suspicion::Keepers(keepers.clone()),
                        (true, true, _) => Suspicion::None,
                        (true, false, false) => Suspicion::Evasive(evasive.clone()),
                        (true, false, true) => Suspicion::Rest,
                    };
                    assert_eq!(Suspicion::of(found(false)), suspicion);
                }
            }
        }
    }
}
