//! Reads the configuration file of `upshift sched`: a TOML table whose keys are the long names of
//! the options, and `policy` and `file` for the first two arguments. Its contents are inserted
//! before the command line's arguments, so that both pass the same checks.

use std::ffi::{OsStr, OsString};

use anyhow::{Context, Result, bail};
use clap::Args as _;
use toml::Value;

use super::args::SchedArgs;

/// Returns the words of a command line; for `sched --config FILE`, inserts the options in FILE.
pub(crate) fn expand_config(words: Vec<OsString>) -> Result<Vec<OsString>> {
    if words.get(1).is_none_or(|word| word != "sched") {
        return Ok(words);
    }
    let end = words.iter().position(|word| word == "--");
    let own_words = &words[..end.unwrap_or(words.len())];
    let position = own_words
        .iter()
        .position(|word| config_value(word).is_some());
    let Some((position, value)) =
        position.and_then(|index| Some((index, config_value(&words[index])?)))
    else {
        return Ok(words);
    };
    let (path, after) = match value {
        Some(path) => (path, position + 1),
        None => match words.get(position + 1) {
            Some(path) => (path.clone(), position + 2),
            // The parser reports the missing value.
            None => return Ok(words),
        },
    };
    let file_name = || path.to_string_lossy().into_owned();
    let text = std::fs::read_to_string(&path).with_context(file_name)?;
    let more = args_of(&text).with_context(file_name)?;
    let mut all = words[..2].to_vec();
    all.extend(more.into_iter().map(OsString::from));
    all.extend_from_slice(&words[2..position]);
    all.extend_from_slice(&words[after..]);
    Ok(all)
}

/// Returns `Some` if the word is `--config`, with the value that the word itself contains.
fn config_value(word: &OsStr) -> Option<Option<OsString>> {
    let rest = word.to_str()?.strip_prefix("--config")?;
    match rest.strip_prefix('=') {
        Some(value) => Some(Some(value.into())),
        None => rest.is_empty().then_some(None),
    }
}

fn args_of(text: &str) -> Result<Vec<String>> {
    let mut table: toml::Table = text.parse()?;
    let mut words = Vec::new();
    for key in ["policy", "file"] {
        if let Some(value) = table.remove(key) {
            words.push(value_text(key, &value)?);
        }
    }
    let command = SchedArgs::augment_args(clap::Command::new("sched"));
    let is_option = |key: &str| {
        let names = command.get_arguments();
        let names = names.filter_map(|option| option.get_long_and_visible_aliases());
        let mut options = names.flatten();
        key != "config" && options.any(|option| option == key)
    };
    for (key, value) in &table {
        if !is_option(key) {
            bail!("{key}: there is no such option (`upshift sched --help` names them)");
        }
        let values = match value {
            Value::Array(values) => values.as_slice(),
            Value::Boolean(false) => &[],
            Value::Boolean(true) => {
                words.push(format!("--{key}"));
                &[]
            }
            value => std::slice::from_ref(value),
        };
        for value in values {
            words.push(format!("--{key}={}", value_text(key, value)?));
        }
    }
    Ok(words)
}

fn value_text(key: &str, value: &Value) -> Result<String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        _ => bail!("{key}: give a string, a number, true, or a list of strings and numbers"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &[&str]) -> Result<Vec<String>> {
        let words = line.iter().map(OsString::from).collect();
        let all = expand_config(words)?;
        Ok(all
            .into_iter()
            .map(|word| word.into_string().unwrap())
            .collect())
    }

    #[test]
    fn a_file_becomes_arguments_before_those_of_the_command_line() {
        let path = std::env::temp_dir().join(format!("upshift-sched-{}.toml", std::process::id()));
        let text = "policy = \"priority\"\ncpu = [0, 1]\nchildren = true\njson = false\n\
                    unit = [\"redis.service=0\", \"batch.service=9\"]\ninterval = \"2ms\"\n";
        std::fs::write(&path, text).unwrap();
        let file = path.to_str().unwrap();
        let found = words(&[
            "upshift", "sched", "--for", "1s", "--config", file, "--", "x",
        ]);
        std::fs::write(&path, "cpu = { a = 1 }").unwrap();
        let equals = format!("--config={file}");
        let wrong = words(&["upshift", "sched", &equals]).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(
            found.unwrap(),
            [
                "upshift",
                "sched",
                "priority",
                "--children",
                "--cpu=0",
                "--cpu=1",
                "--interval=2ms",
                "--unit=redis.service=0",
                "--unit=batch.service=9",
                "--for",
                "1s",
                "--",
                "x"
            ]
        );
        assert!(format!("{wrong:#}").contains("cpu: give"));
        for text in ["cgroop = \"/x\"", "config = \"x\"", "command = [\"x\"]"] {
            let unknown = args_of(text).unwrap_err().to_string();
            assert!(unknown.contains("no such option"), "{unknown}");
        }
        for key in ["duration", "for"] {
            let found = args_of(&format!("{key} = \"1s\"")).unwrap();
            assert_eq!(found, [format!("--{key}=1s")]);
        }
        assert!(words(&["upshift", "sched", "--config", file]).is_err());
    }

    #[test]
    fn other_commands_and_arguments_after_dashes_are_unchanged() {
        for line in [
            &["upshift", "daemon", "--config", "x"][..],
            &["upshift", "sched", "rr", "--", "x", "--config", "y"],
            &["upshift"],
        ] {
            assert_eq!(words(line).unwrap(), line);
        }
    }
}
