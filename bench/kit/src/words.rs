//! Parses command lines of peers (programs on other runtimes, with which the benchmarks compare
//! Upshift): a word that names the work, and options. clap rejects an invalid command line: the
//! caller's `get_matches` prints a message and ends the process with status 2.

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Command};

const WORD: &str = "WORD";
const VARIANT: &str = "variant";

/// Creates the command `WORD [--variant V]`: the word is one of `words`, and the variant is one of
/// `variants`, by default the first. If `variants` is empty, any text is accepted, and there is no
/// default.
pub(crate) fn command(words: &[&'static str], variants: &[&'static str]) -> Command {
    let mut variant = Arg::new(VARIANT).long(VARIANT);
    if let [first, ..] = variants {
        variant = variant.value_parser(one_of(variants)).default_value(*first);
    }
    Command::new("peer")
        .arg(Arg::new(WORD).required(true).value_parser(one_of(words)))
        .arg(variant)
}

fn one_of(values: &[&'static str]) -> PossibleValuesParser {
    PossibleValuesParser::new(values.iter().copied())
}

/// Returns the index of the word in the list that was passed to [`command`].
pub(crate) fn word(matches: &ArgMatches, words: &[&str]) -> usize {
    let word: &String = matches.get_one(WORD).expect("the word is required");
    let index = words.iter().position(|known| known == word);
    index.expect("clap accepts no other word")
}

/// Returns the variant, or an empty string if there is neither an option nor a default.
pub(crate) fn variant(matches: &ArgMatches) -> String {
    matches
        .get_one::<String>(VARIANT)
        .cloned()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str, variants: &[&'static str]) -> Option<(usize, String)> {
        let words = ["one", "two"];
        let line = std::iter::once("peer").chain(line.split_whitespace());
        let matches = command(&words, variants).try_get_matches_from(line).ok()?;
        Some((word(&matches, &words), variant(&matches)))
    }

    #[test]
    fn a_word_and_a_variant_are_parsed() {
        assert_eq!(read("one", &[]), Some((0, String::new())));
        assert_eq!(read("two --variant x", &[]), Some((1, "x".into())));
        assert_eq!(read("two", &["a", "b"]), Some((1, "a".into())));
        assert_eq!(read("--variant b one", &["a", "b"]), Some((0, "b".into())));
        for line in ["", "three", "one --variant c", "one --variant", "one two"] {
            assert_eq!(read(line, &["a", "b"]), None, "{line}");
        }
    }
}
