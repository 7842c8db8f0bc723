//! Dictionaries of structured fields: RFC 9651, section 4.2.2, read without allocating.
//!
//! All types of values are read, so that what is no dictionary is found; those that nothing here
//! asks for are only told apart from the others.

/// The value of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Integer(i64),
    Boolean(bool),
    /// Decimals, strings, tokens, bytes, dates, lists.
    Other,
}

/// Calls `member` with every key and value, in order. `None`: the text is no dictionary, and what
/// `member` was told does not count.
pub(crate) fn read(text: &str, mut member: impl FnMut(&str, Value)) -> Option<()> {
    let mut rest = Rest(text.trim_matches(' '));
    if rest.0.is_empty() {
        return Some(());
    }
    loop {
        let key = rest.key()?;
        let value = if rest.take('=') {
            rest.item_or_list()?
        } else {
            rest.parameters()?;
            Value::Boolean(true)
        };
        member(key, value);
        rest.0 = rest.0.trim_start_matches([' ', '\t']);
        if rest.0.is_empty() {
            return Some(());
        }
        rest.expect(',')?;
        rest.0 = rest.0.trim_start_matches([' ', '\t']);
    }
}

/// What has not been read.
struct Rest<'a>(&'a str);

impl<'a> Rest<'a> {
    fn take(&mut self, c: char) -> bool {
        let rest = self.0.strip_prefix(c);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn expect(&mut self, c: char) -> Option<()> {
        self.take(c).then_some(())
    }

    /// All bytes at the front that are of this kind.
    fn run(&mut self, is: impl Fn(u8) -> bool) -> &'a str {
        let end = self.0.bytes().position(|byte| !is(byte));
        // Bytes that are asked for are ASCII, so this is no middle of a character.
        let (run, rest) = self.0.split_at(end.unwrap_or(self.0.len()));
        self.0 = rest;
        run
    }

    fn key(&mut self) -> Option<&'a str> {
        let begins = |c: char| c.is_ascii_lowercase() || c == '*';
        self.0.starts_with(begins).then(|| {
            self.run(|byte| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(&byte)
            })
        })
    }

    fn parameters(&mut self) -> Option<()> {
        while self.take(';') {
            self.0 = self.0.trim_start_matches(' ');
            self.key()?;
            if self.take('=') {
                self.bare_item()?;
            }
        }
        Some(())
    }

    fn item(&mut self) -> Option<Value> {
        let value = self.bare_item()?;
        self.parameters()?;
        Some(value)
    }

    fn item_or_list(&mut self) -> Option<Value> {
        if !self.take('(') {
            return self.item();
        }
        loop {
            self.0 = self.0.trim_start_matches(' ');
            if self.take(')') {
                self.parameters()?;
                return Some(Value::Other);
            }
            self.item()?;
            if !self.0.starts_with([' ', ')']) {
                return None;
            }
        }
    }

    fn bare_item(&mut self) -> Option<Value> {
        let first = self.0.bytes().next()?;
        match first {
            b'-' | b'0'..=b'9' => return self.number(),
            b'?' => {
                let value = match self.0.get(1..2)? {
                    "0" => false,
                    "1" => true,
                    _ => return None,
                };
                self.0 = &self.0[2..];
                return Some(Value::Boolean(value));
            }
            b'"' => self.string()?,
            b'*' | b'a'..=b'z' | b'A'..=b'Z' => {
                self.run(|byte| {
                    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte)
                });
            }
            b':' => {
                self.expect(':')?;
                self.run(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte));
                self.expect(':')?;
            }
            b'@' => {
                self.expect('@')?;
                if self.number()? == Value::Other {
                    return None;
                }
            }
            b'%' => {
                self.expect('%')?;
                self.string()?;
            }
            _ => return None,
        }
        Some(Value::Other)
    }

    fn number(&mut self) -> Option<Value> {
        let negative = self.take('-');
        let whole = self.run(|byte| byte.is_ascii_digit());
        if self.take('.') {
            let fraction = self.run(|byte| byte.is_ascii_digit());
            let fits = (1..=12).contains(&whole.len()) && (1..=3).contains(&fraction.len());
            return fits.then_some(Value::Other);
        }
        let fits = (1..=15).contains(&whole.len());
        let number: i64 = fits.then(|| whole.parse().ok())??;
        Some(Value::Integer(if negative { -number } else { number }))
    }

    /// Between quotation marks; a backslash goes before one, or before another backslash.
    fn string(&mut self) -> Option<()> {
        self.expect('"')?;
        loop {
            self.run(|byte| (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\');
            if self.take('"') {
                return Some(());
            }
            self.expect('\\')?;
            if !self.take('"') {
                self.expect('\\')?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(text: &str) -> Option<Vec<(String, Value)>> {
        let mut all = Vec::new();
        read(text, |key, value| all.push((key.to_owned(), value)))?;
        Some(all)
    }

    #[test]
    fn members_have_their_keys_and_types() {
        use Value::{Boolean, Integer, Other};
        for (text, expected) in [
            ("", &[][..]),
            ("  ", &[]),
            ("a=1", &[("a", Integer(1))]),
            (" a=-007 ", &[("a", Integer(-7))]),
            (
                "a, b=?0\t,\tc=?1",
                &[
                    ("a", Boolean(true)),
                    ("b", Boolean(false)),
                    ("c", Boolean(true)),
                ],
            ),
            (
                "a;x=1; y, *-._9=2",
                &[("a", Boolean(true)), ("*-._9", Integer(2))],
            ),
            ("a=\"x, b=1, \\\"\\\\\"", &[("a", Other)]),
            (
                "a=(1 \"b, c\";q  tok);p=2, d",
                &[("a", Other), ("d", Boolean(true))],
            ),
            (
                "a=(), b=1.5, c=to/ken:x, d=:aGk=:, e=@-12, f=%\"%c3\"",
                &[
                    ("a", Other),
                    ("b", Other),
                    ("c", Other),
                    ("d", Other),
                    ("e", Other),
                    ("f", Other),
                ],
            ),
            ("a=999999999999999", &[("a", Integer(999_999_999_999_999))]),
        ] {
            let expected = expected
                .iter()
                .map(|(key, value)| ((*key).to_owned(), *value));
            assert_eq!(members(text), Some(expected.collect()), "{text}");
        }
    }

    #[test]
    fn what_is_no_dictionary_is_found() {
        for text in [
            "A=1",
            "1=a",
            "=",
            "a=",
            "a=1,",
            ",a",
            "a,,b",
            "a =1",
            "a= 1",
            "a b",
            "a=1 b",
            "a=-",
            "a=1.",
            "a=1.2345",
            "a=1000000000000000",
            "a=?2",
            "a=?",
            "a=\"",
            "a=\"\\x\"",
            "a=(1",
            "a=(1,2)",
            "a=(1\"b\")",
            "a=:x",
            "a=@1.5",
            "a;=1",
            "a;B",
            "ä=1",
            "a=\"ä\"",
            "a=ä",
            "a=?ä",
            "\ta",
        ] {
            assert_eq!(members(text), None, "{text}");
        }
    }
}
