//! Finds the members of groups in the account files.
//!
//! A process can leave groups, because with subordinate groups (`/etc/subgid`) it may drop all
//! other groups in a user namespace that `newgidmap` has set up. A process cannot change its user,
//! so a rule for a group also applies to processes of users that the account files name as members.

use super::names::user;
use super::{Rule, Subject};

/// A user that is in a group according to `/etc/passwd` or `/etc/group`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// The user.
    pub user: u32,
    /// The group.
    pub group: u32,
}

impl Member {
    /// Returns the members on this machine of the groups that rules name. Groups from other sources
    /// (LDAP, `pam_group`) are unknown.
    pub(super) fn of_groups_in(rules: &[Rule]) -> Vec<Member> {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let (passwd, group) = (read("/etc/passwd"), read("/etc/group"));
        let mut members = Vec::new();
        for rule in rules {
            if let Subject::Group(number) = rule.subject {
                let users = users_of(number, &passwd, &group, |name| user(name).ok());
                members.extend(users.into_iter().map(|user| Member {
                    user,
                    group: number,
                }));
            }
        }
        members
    }
}

fn users_of(
    number: u32,
    passwd: &str,
    group: &str,
    user: impl Fn(&str) -> Option<u32>,
) -> Vec<u32> {
    let primary = passwd.lines().filter_map(|line| {
        let mut fields = line.split(':').skip(2);
        let (uid, gid) = (fields.next()?.parse().ok()?, fields.next()?.parse::<u32>());
        (gid.ok()? == number).then_some(uid)
    });
    let listed = group.lines().filter_map(|line| {
        let mut fields = line.split(':').skip(2);
        let matches = fields.next()?.parse() == Ok(number);
        fields.next().filter(|_| matches)
    });
    let names = listed.flat_map(|names| names.split(','));
    let mut users: Vec<u32> = primary.collect();
    users.extend(names.filter_map(|name| user(name.trim())));
    users
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_have_the_group_as_their_primary_group_or_are_listed() {
        let passwd = "a:x:7:100:A:/:/bin/sh\nb:x:8:101::/:\nnonsense\nc:x:9:100::/:\n";
        let group = "guests:x:100:b,nobody knows\nothers:x:101:a\nguests2:x:100:\nshort:x\n";
        let number = |name: &str| match name {
            "a" => Some(7),
            "b" => Some(8),
            _ => None,
        };
        assert_eq!(users_of(100, passwd, group, number), [7, 9, 8]);
        assert_eq!(users_of(101, passwd, group, number), [8, 7]);
        assert!(users_of(102, passwd, group, number).is_empty());
    }
}
