//! Parses the kernel's command line, which consists of words `NAME=VALUE` or `NAME`, separated by
//! spaces.
//!
//! An unknown word or an invalid value stops the machine with status 2 while it boots, because
//! otherwise a misspelt setting would look like a setting without effect.

use core::fmt::Display;

use crate::arch::finisher;
use crate::machine::Machine;
use crate::println;

const NAMES: &[&str] = &[
    "address", "chaos", "harts", "init", "stack", "threads", "trace", "with",
];
/// Names that only a kernel with the feature `selftest` accepts.
const TEST_NAMES: &[&str] = &["icount", "late", "selftest", "times"];

/// Returns the names that this kernel accepts.
fn known_names() -> impl Iterator<Item = &'static str> {
    let tests = if cfg!(feature = "selftest") {
        TEST_NAMES
    } else {
        &[]
    };
    NAMES.iter().chain(tests).copied()
}

fn is_known(name: &str) -> bool {
    known_names().any(|known| known == name)
}

/// Splits a word into name and value; a bare word is both.
fn split(word: &'static str) -> (&'static str, &'static str) {
    word.split_once('=').unwrap_or((word, word))
}

impl Machine {
    /// Stops the machine if a word of the command line is not known. The kernel calls this as soon
    /// as the console works.
    pub(crate) fn check_arguments(&self) {
        let mut words = self.arguments.split_whitespace();
        if let Some(word) = words.find(|word| !is_known(split(word).0)) {
            refuse(format_args!(
                "unknown argument `{word}` on the command line; the known arguments are {}",
                KnownNames
            ));
        }
    }

    /// Returns the value of the first word of this name; a bare word is its own value.
    pub(crate) fn argument(&self, name: &str) -> Option<&'static str> {
        debug_assert!(is_known(name) || TEST_NAMES.contains(&name));
        let mut words = self.arguments.split_whitespace().map(split);
        words.find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    /// Returns the number that is the value of `name`. Stops the machine if the value is not a
    /// number from 1 to `maximum`.
    pub(crate) fn number(&self, name: &str, maximum: usize) -> Option<usize> {
        let value = self.argument(name)?;
        let number = value.parse().ok().filter(|n| (1..=maximum).contains(n));
        if number.is_none() {
            refuse(format_args!(
                "{name}={value}: the value must be a number from 1 to {maximum}"
            ));
        }
        number
    }
}

/// Prints the reason, and stops the machine with status 2.
pub(crate) fn refuse(reason: impl Display) -> ! {
    println!("upshift: {reason}");
    finisher::exit(2)
}

struct KnownNames;

impl Display for KnownNames {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        for (index, name) in known_names().enumerate() {
            write!(f, "{}{name}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}
