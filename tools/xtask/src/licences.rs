//! Licences and sources of dependencies, where cargo-deny is not there to look: against the list of deny.toml, and one registry.

use std::fs;
use std::path::Path;

use serde_json::Value;
use spdx::{Expression, LicenseReq, ParseMode};

use crate::setup;

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// How many dependencies were looked at.
///
/// # Errors
/// A line for each that has another licence, or comes from elsewhere.
pub(crate) fn check(root: &Path) -> Result<usize, String> {
    let rules = Rules::read(root)?;
    let mut metadata = setup::cargo(root);
    metadata.args(["metadata", "--locked", "--format-version", "1"]);
    metadata.args(["--filter-platform", "x86_64-unknown-linux-gnu"]);
    let output = metadata.output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stderr);
    let all: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cargo metadata: {error}: {text}"))?;
    let packages = all["packages"].as_array().ok_or("it names no packages")?;
    // What has no source is the workspace's own.
    let foreign = packages.iter().filter(|one| !one["source"].is_null());
    let found: Vec<_> = foreign.map(|package| rules.hold(package)).collect();
    let count = found.len();
    let wrong: Vec<_> = found.into_iter().filter_map(Result::err).collect();
    match wrong.is_empty() {
        true => Ok(count),
        false => Err(wrong.join("\n")),
    }
}

fn text<'a>(package: &'a Value, key: &str) -> &'a str {
    package[key].as_str().unwrap_or_default()
}

/// What deny.toml says of licences.
struct Rules {
    allowed: Vec<LicenseReq>,
    /// Crates, and what else each may have.
    exceptions: Vec<(String, Vec<LicenseReq>)>,
}

impl Rules {
    /// One entry to a line.
    fn read(root: &Path) -> Result<Rules, String> {
        let file = fs::read_to_string(root.join("deny.toml")).map_err(|error| error.to_string())?;
        let allowed = licences(&section(&file, "allow = [").concat())?;
        if allowed.is_empty() {
            return Err("deny.toml allows no licence".to_owned());
        }
        let exceptions = section(&file, "exceptions = [").into_iter().map(|line| {
            let (name, allowed) = line.split_once("allow =").unwrap_or((line, ""));
            let name = name.split('"').nth(1).unwrap_or_default();
            Ok((name.to_owned(), licences(allowed)?))
        });
        let exceptions = exceptions.collect::<Result<_, String>>()?;
        Ok(Rules {
            allowed,
            exceptions,
        })
    }

    fn hold(&self, package: &Value) -> Result<(), String> {
        let crate_name = text(package, "name");
        let name = format!("{crate_name} {}", text(package, "version"));
        let (source, licence) = (text(package, "source"), text(package, "license"));
        if source != REGISTRY {
            return Err(format!("{name} comes from {source}"));
        }
        let parsed = Expression::parse_mode(licence, ParseMode::LAX)
            .map_err(|error| format!("{name}: licence `{licence}`: {error}"))?;
        let exception = self.exceptions.iter().find(|one| one.0 == crate_name);
        let also = exception.map_or(&[][..], |one| &one.1);
        match parsed.evaluate(|asked| self.allowed.contains(asked) || also.contains(asked)) {
            true => Ok(()),
            false => Err(format!("{name}: licence `{licence}`: not in deny.toml")),
        }
    }
}

/// The lines of a list, without those that are comments.
fn section<'a>(file: &'a str, begins: &str) -> Vec<&'a str> {
    let lines = file.lines().skip_while(|line| !line.starts_with(begins));
    let lines = lines.skip(1).take_while(|line| *line != "]");
    lines.filter(|line| !line.starts_with('#')).collect()
}

/// Those in quotes.
fn licences(list: &str) -> Result<Vec<LicenseReq>, String> {
    let mut all = Vec::new();
    for name in list.split('"').skip(1).step_by(2) {
        let parsed = Expression::parse(name).map_err(|error| format!("deny.toml: {error}"))?;
        all.extend(parsed.requirements().map(|one| one.req.clone()));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_not_allowed_or_comes_from_elsewhere_is_named() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let rules = Rules::read(&root).unwrap();
        let package = |licence: &str, source: &str| json!({"name": "a", "version": "1.0.0", "license": licence, "source": source});
        let look = |licence, source| rules.hold(&package(licence, source));
        assert_eq!(look("MIT/Apache-2.0", REGISTRY), Ok(()));
        assert_eq!(look("(MIT OR GPL-3.0-only) AND Zlib", REGISTRY), Ok(()));
        let copyleft = look("MIT AND GPL-3.0-only", REGISTRY).unwrap_err();
        assert!(copyleft.contains("a 1.0.0") && copyleft.contains("deny.toml"));
        let elsewhere = look("MIT", "git+https://example.com").unwrap_err();
        assert!(elsewhere.contains("comes from git"));
        assert!(look("", REGISTRY).is_err());
    }
}
