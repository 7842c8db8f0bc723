//! The command line: options may stand anywhere, and are taken out one by one.

use crate::USAGE;

/// What has not been taken yet.
pub(crate) struct Arguments(Vec<String>);

impl Arguments {
    /// Those of this process.
    pub(crate) fn of_process() -> Arguments {
        Arguments(std::env::args().skip(1).collect())
    }

    /// Takes the first word.
    pub(crate) fn word(&mut self) -> Option<String> {
        (!self.0.is_empty()).then(|| self.0.remove(0))
    }

    /// Takes a flag: was it there?
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        let at = self.0.iter().position(|argument| argument == name);
        at.map(|at| self.0.remove(at)).is_some()
    }

    /// Takes an option with its value.
    pub(crate) fn value(&mut self, name: &str) -> Result<Option<String>, String> {
        let Some(at) = self.0.iter().position(|argument| argument == name) else {
            return Ok(None);
        };
        if at + 1 >= self.0.len() {
            return Err(format!("{name}: its value is missing\n{USAGE}"));
        }
        self.0.remove(at);
        Ok(Some(self.0.remove(at)))
    }

    /// Takes an option whose value is a number.
    pub(crate) fn number(&mut self, name: &str) -> Result<Option<u64>, String> {
        let parse = |value: String| {
            let number = value.parse();
            number.map_err(|_| format!("{name} {value}: give a number"))
        };
        self.value(name)?.map(parse).transpose()
    }

    /// Takes `--smp LIST`: numbers of harts.
    pub(crate) fn harts(&mut self) -> Result<Option<Vec<u32>>, String> {
        let parse = |number: &str| match number.parse() {
            Ok(number @ 1..=8) => Ok(number),
            _ => Err(format!("--smp {number}: give numbers from 1 to 8")),
        };
        let list = self.value("--smp")?;
        list.map(|list| list.split(',').map(parse).collect())
            .transpose()
    }

    /// All that is left.
    pub(crate) fn rest(self) -> Vec<String> {
        self.0
    }

    /// Nothing may be left.
    pub(crate) fn end(self) -> Result<(), String> {
        match self.0.first() {
            None => Ok(()),
            Some(left) => Err(format!("what is `{left}`?\n{USAGE}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> Arguments {
        Arguments(words.iter().map(|word| (*word).to_owned()).collect())
    }

    #[test]
    fn options_may_stand_anywhere() {
        let mut arguments = of(&["trace", "--smp", "2,4", "child", "--json"]);
        assert_eq!(arguments.word().as_deref(), Some("trace"));
        assert_eq!(arguments.harts(), Ok(Some(vec![2, 4])));
        assert!(arguments.flag("--json") && !arguments.flag("--icount"));
        assert_eq!(arguments.rest(), ["child"]);
    }

    #[test]
    fn nonsense_is_an_error() {
        assert!(of(&["--smp", "9"]).harts().is_err());
        assert!(of(&["--smp"]).harts().is_err());
        assert!(of(&["--seed", "x"]).number("--seed").is_err());
        assert!(of(&["left"]).end().is_err());
    }
}
