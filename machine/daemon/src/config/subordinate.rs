//! Users that belong to others.

use super::names::user;

/// A range of users that belong to another: an ordinary user may be any of its own in a user
/// namespace (`newuidmap`), so limits and contests of one would be those of 65,536.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subordinate {
    /// The first.
    pub first: u32,
    /// How many.
    pub count: u32,
    /// Whose they are.
    pub owner: u32,
}

impl Subordinate {
    /// Those of this machine.
    pub fn all() -> Vec<Subordinate> {
        let text = std::fs::read_to_string("/etc/subuid").unwrap_or_default();
        text.lines().filter_map(Subordinate::parse).collect()
    }

    /// `USER:FIRST:COUNT`
    pub(super) fn parse(line: &str) -> Option<Subordinate> {
        let mut fields = line.trim().split(':');
        let owner = user(fields.next()?).ok()?;
        let (first, count) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        Some(Subordinate {
            first,
            count,
            owner,
        })
    }

    /// The user that answers for them. Root gives its own to containers, for whose deeds it does not stand: the range is one user.
    pub(super) fn person(&self) -> u32 {
        match self.owner {
            0 => self.first,
            owner => owner,
        }
    }
}
