//! Urgencies of RFC 9218, and the levels they become.
//!
//! | `Priority` | level |
//! |---|---|
//! | `u=0` (most urgent) | 4 |
//! | `u=3` (default) | 28 |
//! | `u=7` (background) | 60 |
//! | with `i` | one more: after the others of its urgency |
//!
//! So a level is 4 + 8 u, or 5 + 8 u for what may be shown in part (`i`): a large picture that
//! fills line by line goes behind the scripts of the same urgency.

use upshift::Level;

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Urgency {
    /// `u`: 0 (most urgent) to 7.
    pub u: u8,
    /// `i`: parts of the response are of use before the whole is there.
    pub incremental: bool,
}

impl Default for Urgency {
    /// RFC 9218, section 4: `u=3`, not incremental.
    fn default() -> Urgency {
        Urgency {
            u: 3,
            incremental: false,
        }
    }
}

impl Urgency {
    /// Reads the value of a `Priority` header field (RFC 9218, section 5; a dictionary of RFC
    /// 9651). Parameters that are unknown, out of range or of the wrong type are ignored, as
    /// section 4 asks; a value that is no dictionary counts as absent.
    ///
    /// ```
    /// use upshift_serve::Urgency;
    ///
    /// assert_eq!(Urgency::parse("u=1, i"), Urgency { u: 1, incremental: true });
    /// assert_eq!(Urgency::parse("u=9"), Urgency::default());
    /// ```
    #[must_use]
    pub fn parse(field: &str) -> Urgency {
        let mut urgency = Urgency::default();
        for member in field.split(',') {
            // Parameters of a member are not ours.
            let member = member.split(';').next().unwrap_or_default().trim();
            let (key, value) = match member.split_once('=') {
                Some((key, value)) => (key, Some(value)),
                None => (member, None),
            };
            match (key, value) {
                ("u", Some(value)) => {
                    if let [digit @ b'0'..=b'7'] = value.as_bytes() {
                        urgency.u = digit - b'0';
                    }
                }
                ("i", None | Some("?1")) => urgency.incremental = true,
                ("i", Some("?0")) => urgency.incremental = false,
                _ => {
                    let is_key = |c: char| {
                        c.is_ascii_lowercase() || c.is_ascii_digit() || "_-.*".contains(c)
                    };
                    if key.is_empty() || !key.chars().all(is_key) {
                        return Urgency::default();
                    }
                }
            }
        }
        urgency
    }

    /// At most as urgent as `ceiling`.
    #[must_use]
    pub fn clamped(self, ceiling: u8) -> Urgency {
        Urgency {
            u: self.u.max(ceiling.min(7)),
            ..self
        }
    }

    /// The level that requests of this urgency run at.
    #[must_use]
    pub fn level(self) -> Level {
        let level = 4 + 8 * self.u.min(7) + u8::from(self.incremental);
        Level::new(level).unwrap_or(Level::LEAST_URGENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(field: &str) -> (u8, bool) {
        let urgency = Urgency::parse(field);
        (urgency.u, urgency.incremental)
    }

    #[test]
    fn the_header_is_read_as_rfc_9218_says() {
        assert_eq!(read(""), (3, false));
        assert_eq!(read("u=0"), (0, false));
        assert_eq!(read("u=5, i"), (5, true));
        assert_eq!(read("i=?0, u=7"), (7, false));
        assert_eq!(read("i,u=2;foo=1"), (2, true));
        // Unknown, out of range, wrong type: ignored one by one.
        assert_eq!(read("x=1, u=2"), (2, false));
        assert_eq!(read("u=8, i"), (3, true));
        assert_eq!(read("u=-1"), (3, false));
        assert_eq!(read("u=\"1\""), (3, false));
        // The last one of equal keys counts.
        assert_eq!(read("u=1, u=6"), (6, false));
        // No dictionary.
        assert_eq!(read("u=1, ===, i"), (3, false));
    }

    #[test]
    fn more_urgent_clients_get_more_urgent_levels_up_to_the_ceiling() {
        let mut last = Level::MOST_URGENT;
        for u in 0..8 {
            for incremental in [false, true] {
                let level = Urgency { u, incremental }.level();
                assert!(level > last);
                last = level;
            }
        }
        assert_eq!(Urgency::parse("u=0").clamped(2).u, 2);
        assert_eq!(Urgency::parse("u=5").clamped(2).u, 5);
    }
}
