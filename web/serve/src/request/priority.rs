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

use http::{HeaderMap, HeaderName, HeaderValue};
use upshift::Level;

use crate::request::dictionary::{self, Value};

/// The field. As a name it is looked up without being read and checked each time.
pub(crate) static PRIORITY: HeaderName = HeaderName::from_static("priority");

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
        Urgency::default().merged(field)
    }

    /// With what the value of the `Priority` field of a response says (RFC 9218, section 8): what it does not name
    /// stays.
    ///
    /// ```
    /// use upshift_serve::Urgency;
    ///
    /// let asked = Urgency { u: 5, incremental: true };
    /// assert_eq!(asked.merged("u=1"), Urgency { u: 1, incremental: true });
    /// assert_eq!(asked.merged("u=one"), asked);
    /// ```
    #[must_use]
    pub fn merged(self, field: &str) -> Urgency {
        let mut urgency = self;
        // The last of equal keys counts, also if it is of no use.
        let read = dictionary::read(field, |key, value| match (key, value) {
            ("u", Value::Integer(u @ 0..=7)) => urgency.u = u as u8,
            ("u", _) => urgency.u = self.u,
            ("i", Value::Boolean(i)) => urgency.incremental = i,
            ("i", _) => urgency.incremental = self.incremental,
            _ => {}
        });
        read.map_or(self, |()| urgency)
    }

    /// What the `Priority` fields of a request ask for; several are one list (RFC 9110, section 5.3).
    pub(crate) fn of(headers: &HeaderMap) -> Urgency {
        let mut fields = headers.get_all(&PRIORITY).iter();
        let text = |field: &HeaderValue| field.to_str().map(str::to_owned);
        match (fields.next(), fields.next()) {
            (None, _) => Urgency::default(),
            (Some(only), None) => only
                .to_str()
                .map_or_else(|_| Urgency::default(), Urgency::parse),
            _ => {
                let fields = headers.get_all(&PRIORITY).iter().map(text);
                let fields: Result<Vec<_>, _> = fields.collect();
                fields.map_or_else(
                    |_| Urgency::default(),
                    |all| Urgency::parse(&all.join(", ")),
                )
            }
        }
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
    use crate::fuzz;

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
        assert_eq!(read("u=1, i, u=x, i=2"), (3, false));
        assert_eq!(read("x=\"i, u=0, \", u=05;i"), (5, false));
        assert_eq!(read("u, i=?1;u=0"), (3, true));
        // No dictionary.
        for field in ["u=1, ===, i", "u=1,", "U=1, u=1", "u =1", "u=1 i"] {
            assert_eq!(read(field), (3, false), "{field}");
        }
    }

    #[test]
    fn several_fields_are_one() {
        let of = |fields: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for field in fields {
                headers.append("priority", HeaderValue::from_static(field));
            }
            Urgency::of(&headers)
        };
        assert_eq!(of(&[]), Urgency::default());
        assert_eq!(of(&["u=1"]), Urgency::parse("u=1"));
        assert_eq!(of(&["u=1, i", "u=5"]), Urgency::parse("u=5, i"));
        assert_eq!(of(&["u=1", "?"]), Urgency::default());
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
    #[test]
    fn fuzz_priorities() {
        let samples: [&[u8]; 5] = [
            b"u=0, i",
            b"u=7;x=1;y, i=?0, b=\"a, u=1\\\"\"",
            b"a=(1 \"b, c\";q tok);p=2, u=5",
            b"b=1.5, c=to/ken:x, d=:aGk=:, e=@-12, f=%\"%c3\"",
            b"u=1,\tu=2 , i,i=1",
        ];
        let words = [
            "u=",
            "i",
            "i=?1",
            "?0",
            ", ",
            ";a",
            "(",
            ")",
            "999999999999999",
            "-1",
            "\"",
            "\\\"",
        ];
        fuzz::fuzz("priorities", &samples, &words, 5000, |bytes| {
            let field = String::from_utf8_lossy(bytes);
            let urgency = Urgency::parse(&field);
            assert!(urgency.u <= 7);
            let mut members = Vec::new();
            let valid = dictionary::read(&field, |key, value| {
                members.push((key.to_owned(), std::mem::discriminant(&value)));
            });
            // What is last counts; what is broken stays so.
            let more = format!("{field}, u=2, i=?0");
            let (default, said) = (Urgency::default(), Urgency::parse(&more));
            let last = Urgency {
                u: 2,
                incremental: false,
            };
            match valid {
                None => assert_eq!((urgency, said), (default, default)),
                Some(()) if members.is_empty() => assert_eq!(urgency, default),
                Some(()) => assert_eq!(said, last),
            }
            // Two fields are one list.
            if let Ok(value) = HeaderValue::from_bytes(bytes) {
                let mut headers = HeaderMap::new();
                headers.append("priority", value);
                assert_eq!(
                    Urgency::of(&headers),
                    if field.is_ascii() { urgency } else { default }
                );
                headers.append("priority", HeaderValue::from_static("u=2, i=?0"));
                let one = if field.is_ascii() { said } else { default };
                assert_eq!(Urgency::of(&headers), one);
            }
            fuzz::way((
                urgency.u,
                urgency.incremental,
                valid.is_some(),
                members.len().min(20),
            ))
        });
    }
}
