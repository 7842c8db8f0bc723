//! Maps the urgencies of RFC 9218 to levels (0 is the most urgent, 63 the least).
//!
//! | `Priority` | level |
//! |---|---|
//! | `u=0` (most urgent) | 4 |
//! | `u=3` (default) | 28 |
//! | `u=7` (background) | 60 |
//! | with `i` | one more: after other requests of the same urgency |
//!
//! So a level is 4 + 8 u, or 5 + 8 u for incremental responses (`i`). For example, a large picture
//! that appears line by line is less urgent than scripts of the same urgency.

use http::{HeaderMap, HeaderName};
use upshift::Level;

/// The `Priority` field. This name is prepared, so a lookup neither parses nor checks it.
pub(crate) static PRIORITY: HeaderName = HeaderName::from_static("priority");

/// The priority that a client requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Urgency {
    /// `u`: 0 (most urgent) to 7.
    pub u: u8,
    /// `i`: the client can use parts of the response before all have arrived.
    pub incremental: bool,
}

impl Default for Urgency {
    /// Returns the default of RFC 9218, section 4: `u=3`, not incremental.
    fn default() -> Urgency {
        Urgency {
            u: 3,
            incremental: false,
        }
    }
}

impl Urgency {
    /// Reads the members `u` and `i` of a `Priority` header field (RFC 9218, section 5). Other
    /// members, and values that are out of range or of the wrong type, are ignored, as section 4
    /// requires. The remaining text is not checked to be a dictionary of RFC 9651.
    ///
    /// ```
    /// use upshift_serve::Urgency;
    ///
    /// assert_eq!(Urgency::parse("u=1, i"), Urgency { u: 1, incremental: true });
    /// assert_eq!(Urgency::parse("u=9"), Urgency::default());
    /// ```
    #[must_use]
    pub fn parse(field: &str) -> Urgency {
        Urgency::default().merged(field)
    }

    /// Returns this urgency with the changes of the `Priority` field of a response (RFC 9218,
    /// section 8). A member that the field does not contain stays the same.
    ///
    /// ```
    /// use upshift_serve::Urgency;
    ///
    /// let requested = Urgency { u: 5, incremental: true };
    /// assert_eq!(requested.merged("u=1"), Urgency { u: 1, incremental: true });
    /// assert_eq!(requested.merged("u=one"), requested);
    /// ```
    #[must_use]
    pub fn merged(self, field: &str) -> Urgency {
        let mut urgency = self;
        for member in field.split(',') {
            // Values have no known parameters.
            let item = member.split(';').next().unwrap_or_default();
            let item = item.trim_matches([' ', '\t']);
            let (key, value) = item.split_once('=').unwrap_or((item, "?1"));
            // The last of equal keys counts, even with an invalid value; the member is then
            // ignored.
            match (key, value.as_bytes()) {
                ("u", [digit @ b'0'..=b'7']) => urgency.u = digit - b'0',
                ("u", _) => urgency.u = self.u,
                ("i", [b'?', bit @ (b'0' | b'1')]) => urgency.incremental = *bit == b'1',
                ("i", _) => urgency.incremental = self.incremental,
                _ => {}
            }
        }
        urgency
    }

    /// Returns the urgency that the `Priority` fields of a request name; several fields form one
    /// list (RFC 9110, section 5.3).
    pub(crate) fn from_headers(headers: &HeaderMap) -> Urgency {
        let fields = headers.get_all(&PRIORITY).iter();
        let texts = fields.filter_map(|field| field.to_str().ok());
        texts.fold(Urgency::default(), Urgency::merged)
    }

    /// Returns this urgency, reduced to be at most as urgent as `ceiling`.
    #[must_use]
    pub fn clamped(self, ceiling: u8) -> Urgency {
        Urgency {
            u: self.u.max(ceiling.min(7)),
            ..self
        }
    }

    /// Returns the level at which requests of this urgency run.
    #[must_use]
    pub fn level(self) -> Level {
        let level = 4 + 8 * self.u.min(7) + u8::from(self.incremental);
        Level::new(level).unwrap_or(Level::LEAST_URGENT)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

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
        // Unknown members, values out of range and wrong types are ignored one by one.
        assert_eq!(read("x=1, u=2"), (2, false));
        assert_eq!(read("u=8, i"), (3, true));
        assert_eq!(read("u=-1"), (3, false));
        assert_eq!(read("u=\"1\""), (3, false));
        // The last of equal keys counts.
        assert_eq!(read("u=1, u=6"), (6, false));
        assert_eq!(read("u=1, i, u=x, i=2"), (3, false));
        assert_eq!(read("u=5;i, U=1"), (5, false));
        assert_eq!(read("u,\ti=?1;u=0"), (3, true));
        for field in ["u =1", "u=1 i", "u=+1", "u=05", "u=", ",", "i=", "i=?2"] {
            assert_eq!(read(field), (3, false), "{field}");
        }
    }

    #[test]
    fn several_fields_form_one_list() {
        let urgency_of = |fields: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for field in fields {
                headers.append("priority", HeaderValue::from_static(field));
            }
            Urgency::from_headers(&headers)
        };
        assert_eq!(urgency_of(&[]), Urgency::default());
        assert_eq!(urgency_of(&["u=1"]), Urgency::parse("u=1"));
        assert_eq!(urgency_of(&["u=1, i", "u=5"]), Urgency::parse("u=5, i"));
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
