//! Subordinate users: ranges of user ids that belong to another user, from `/etc/subuid`.

use super::names::user;

/// A range of users that belong to another user. An ordinary user may act as any of them in a user
/// namespace (`newuidmap`), which would multiply limits per user by 65,536.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subordinate {
    /// The first user of the range.
    pub first: u32,
    /// Number of users.
    pub count: u32,
    /// Owner of the range.
    pub owner: u32,
}

impl Subordinate {
    /// Returns the ranges of this machine.
    pub fn all() -> Vec<Subordinate> {
        let text = std::fs::read_to_string("/etc/subuid").unwrap_or_default();
        text.lines().filter_map(Subordinate::parse).collect()
    }

    /// Parses `USER:FIRST:COUNT`.
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

    /// Returns the user to whom the processes of this range are accounted. Root gives its own
    /// ranges to containers and is not accountable for them, so such a range counts as one user.
    pub(super) fn accountable_user(&self) -> u32 {
        match self.owner {
            0 => self.first,
            owner => owner,
        }
    }
}
