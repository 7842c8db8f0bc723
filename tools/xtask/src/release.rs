//! `cargo xtask release`: looks at what is to be published, builds it from its packages, and sets the tag. It publishes nothing.
//!
//! What is found wrong is listed whole: versions, what the registry asks of a manifest, what is promised there (licences, a README, the
//! minimum Rust version), dependencies that would not be found, the entry of CHANGELOG.md, the state of the work tree. Then that Rust version,
//! where it is installed, checks the libraries, and `cargo package` builds every crate as a user gets it. `--dry-run` sets no tag, and takes `Unreleased` for the entry.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Args;
use serde_json::Value;

use crate::bench::foreground;
use crate::setup::{self, SEMVER_CHECKS};

#[derive(Args)]
pub(crate) struct Options {
    /// Say what would be tagged, and tag nothing
    #[arg(long)]
    dry_run: bool,

    /// Do not build what has been packaged: a minute instead of many
    #[arg(long)]
    no_verify: bool,
}

/// Looks, builds, tags.
pub(crate) fn command(root: &Path, options: &Options) -> ExitCode {
    match release(root, options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problems) => {
            for problem in problems {
                eprintln!("error: {problem}");
            }
            ExitCode::FAILURE
        }
    }
}

fn release(root: &Path, options: &Options) -> Result<(), Vec<String>> {
    let one = |error| vec![error];
    let workspace = Workspace::read(root).map_err(one)?;
    let published = workspace.in_order().map_err(one)?;
    let version = &published
        .first()
        .ok_or_else(|| one("nothing is published".to_owned()))?
        .version;
    let tag = format!("v{version}");
    let mut problems = Vec::new();
    for package in &published {
        problems.extend(workspace.problems_of(package, version));
    }
    let changes = fs::read_to_string(root.join("CHANGELOG.md"));
    let changes = changes.map_err(|error| one(format!("CHANGELOG.md: {error}")))?;
    problems.extend(entry(&changes, version, options.dry_run).err());
    let dirty = git(root, &["status", "--porcelain", "--untracked-files=no"]).map_err(one)?;
    if !dirty.is_empty() {
        problems.push("the work tree has changes that are not committed".to_owned());
    }
    if !git(root, &["tag", "--list", &tag]).map_err(one)?.is_empty() {
        problems.push(format!("the tag {tag} is there already"));
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let names: Vec<&str> = published
        .iter()
        .map(|package| package.name.as_str())
        .collect();
    println!("{version}: {}", names.join(", "));
    if published.iter().any(|package| package.repository.is_none()) {
        println!(
            "note: the manifests name no `repository`: add it to [workspace.package] once the source has a public place"
        );
    }
    interfaces(root, &names).map_err(one)?;
    minimum(root, &workspace).map_err(one)?;
    let mut package = setup::cargo(root);
    package.args(["package", "--quiet"]);
    package.args(names.iter().flat_map(|name| ["-p", name]));
    package.args(options.no_verify.then_some("--no-verify"));
    foreground(&mut package).map_err(|_| one("cargo package".to_owned()))?;
    let commit = git(root, &["rev-parse", "--short", "HEAD"]).map_err(one)?;
    if options.dry_run {
        println!("would tag {commit} as {tag}; `cargo publish --workspace` is next");
        return Ok(());
    }
    git(root, &["tag", "--annotate", &tag, "--message", &tag]).map_err(one)?;
    println!("{commit} is {tag}; `cargo publish --workspace` is next");
    Ok(())
}

/// Compares the interfaces with those of the last release, if there was one and the program is there.
fn interfaces(root: &Path, names: &[&str]) -> Result<(), String> {
    let tags = git(root, &["tag", "--list", "v*", "--sort=-version:refname"])?;
    let Some(last) = tags.lines().next() else {
        println!("skipped: interfaces are not compared, nothing was released before");
        return Ok(());
    };
    if !SEMVER_CHECKS.is_there(root) {
        println!(
            "skipped: interfaces are not compared with {last}: {}",
            SEMVER_CHECKS.absence()
        );
        return Ok(());
    }
    let mut check = setup::cargo(root);
    check.args(["semver-checks", "--baseline-rev", last]);
    check.args(names.iter().flat_map(|name| ["-p", name]));
    foreground(&mut check).map_err(|_| format!("interfaces broke what {last} promised"))
}

/// The crates that other programs depend on, whose minimum Rust version is a promise.
const LIBRARIES: [&str; 4] = ["upshift", "upshift-core", "upshift-ring", "upshift-serve"];

/// Checks the libraries with the Rust version that their manifests promise, if that toolchain is there: it downloads none.
fn minimum(root: &Path, workspace: &Workspace) -> Result<(), String> {
    let promised = workspace.0.get(LIBRARIES[0]);
    let promised = promised.and_then(|package| package.manifest["rust_version"].as_str());
    let version = promised.ok_or("no rust_version")?;
    // The toolchain of a minor version is called `1.95` or `1.95.0`, as it was installed.
    let names = [version.to_owned(), format!("{version}.0")];
    // Unlike `cargo +VERSION`, `rustup run` never downloads a toolchain.
    let there = names.iter().find(|name| {
        let mut rustc = Command::new("rustup");
        rustc.args(["run", name, "rustc", "--version"]);
        rustc.output().is_ok_and(|output| output.status.success())
    });
    let Some(name) = there else {
        println!(
            "skipped: nothing is checked with Rust {version}: `rustup toolchain install {version} --profile minimal`"
        );
        return Ok(());
    };
    let mut check = Command::new("rustup");
    setup::without_cargo_run(&mut check);
    check.current_dir(root);
    check.args(["run", name, "cargo", "check", "--quiet", "--target-dir"]);
    check.arg(root.join("target/msrv"));
    check.args(LIBRARIES.iter().flat_map(|name| ["-p", name]));
    foreground(&mut check).map_err(|_| format!("the libraries do not build with Rust {version}"))
}

/// The entry of a version in CHANGELOG.md: its lines, none of which may be missing.
fn entry<'a>(changes: &'a str, version: &str, dry_run: bool) -> Result<&'a str, String> {
    let dated = format!("[{version}] - ");
    for section in changes.split("\n## ").skip(1) {
        let (title, text) = section.split_once('\n').unwrap_or((section, ""));
        let date = title.strip_prefix(&dated);
        if date.is_some_and(is_date) || (dry_run && title == "[Unreleased]") {
            return match text.lines().any(|line| line.starts_with("* ")) {
                true => Ok(text),
                false => Err(format!("CHANGELOG.md: `## {title}` says nothing")),
            };
        }
    }
    let or = if dry_run {
        " nor `## [Unreleased]`"
    } else {
        ""
    };
    Err(format!(
        "CHANGELOG.md has no `## [{version}] - YEAR-MONTH-DAY`{or}"
    ))
}

fn is_date(text: &str) -> bool {
    let parts: Vec<_> = text.split('-').collect();
    let digits =
        |part: &&str, many| part.len() == many && part.bytes().all(|it| it.is_ascii_digit());
    parts.len() == 3
        && [4, 2, 2]
            .iter()
            .zip(&parts)
            .all(|(many, part)| digits(part, *many))
}

fn git(root: &Path, args: &[&str]) -> Result<String, String> {
    let output = Command::new("git").current_dir(root).args(args).output();
    let output = output.map_err(|error| format!("git: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(format!(
            "git {}: {}",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}

/// A crate of the workspace.
struct Package {
    name: String,
    version: String,
    folder: PathBuf,
    published: bool,
    is_library: bool,
    repository: Option<String>,
    /// Its part of `cargo metadata`.
    manifest: Value,
}

struct Workspace(BTreeMap<String, Package>);

impl Workspace {
    fn read(root: &Path) -> Result<Workspace, String> {
        let mut metadata = setup::cargo(root);
        metadata.args(["metadata", "--no-deps", "--format-version", "1"]);
        let output = metadata.output().map_err(|error| error.to_string())?;
        let found: Value = serde_json::from_slice(&output.stdout).map_err(|error| {
            format!(
                "cargo metadata: {error}: {}",
                String::from_utf8_lossy(&output.stderr)
            )
        })?;
        let packages = found["packages"].as_array().into_iter().flatten();
        let packages = packages.filter_map(|manifest| Package::new(manifest.clone()));
        Ok(Workspace(
            packages
                .map(|package| (package.name.clone(), package))
                .collect(),
        ))
    }

    /// What is published, each after what it needs.
    fn in_order(&self) -> Result<Vec<&Package>, String> {
        let mut order: Vec<&Package> = Vec::new();
        let mut left: Vec<&Package> = self
            .0
            .values()
            .filter(|package| package.published)
            .collect();
        while !left.is_empty() {
            let waits = |package: &&Package| {
                package
                    .needs()
                    .any(|(name, _)| left.iter().any(|other| other.name == name))
            };
            let (later, now): (Vec<_>, Vec<_>) =
                left.iter().copied().partition(|package| waits(package));
            if now.is_empty() {
                let names: Vec<_> = later.iter().map(|package| package.name.as_str()).collect();
                return Err(format!("these need each other: {}", names.join(", ")));
            }
            order.extend(now);
            left = later;
        }
        Ok(order)
    }

    fn problems_of(&self, package: &Package, version: &str) -> Vec<String> {
        let mut problems = package.problems();
        if package.version != version {
            problems.push(format!("has version {}, others {version}", package.version));
        }
        for (name, asked) in package.needs() {
            let Some(other) = self.0.get(name) else {
                continue;
            };
            if !other.published {
                problems.push(format!("needs {name}, which is not published"));
            } else if asked != format!("^{}", other.version) {
                problems.push(format!("needs {name} {asked}, which is {}", other.version));
            }
        }
        problems
            .into_iter()
            .map(|problem| format!("{}: {problem}", package.name))
            .collect()
    }
}

impl Package {
    fn new(manifest: Value) -> Option<Package> {
        let text = |key: &str| manifest[key].as_str().map(str::to_owned);
        let kinds = manifest["targets"]
            .as_array()?
            .iter()
            .flat_map(|target| target["kind"].as_array());
        let is_library = kinds
            .flatten()
            .any(|kind| kind == "lib" || kind == "proc-macro");
        Some(Package {
            name: text("name")?,
            version: text("version")?,
            folder: Path::new(manifest["manifest_path"].as_str()?)
                .parent()?
                .to_owned(),
            // `publish = false` is an empty list of registries.
            published: manifest["publish"]
                .as_array()
                .is_none_or(|registries| !registries.is_empty()),
            is_library,
            repository: text("repository"),
            manifest,
        })
    }

    /// What it is built with, and which version it asks for.
    fn needs(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.manifest["dependencies"]
            .as_array()
            .into_iter()
            .flatten();
        // Dependencies of tests that name a path only are left out of the package.
        let needed = all.filter(|it| it["kind"] != "dev" || it["req"] != "*");
        needed.filter_map(|it| Some((it["name"].as_str()?, it["req"].as_str()?)))
    }

    /// What the registry or its readers miss.
    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let manifest = &self.manifest;
        for key in ["description", "license", "readme", "rust_version"] {
            if manifest[key].as_str().is_none_or(str::is_empty) {
                problems.push(format!("no {key}"));
            }
        }
        for key in ["keywords", "categories"] {
            let words: Vec<_> = manifest[key].as_array().into_iter().flatten().collect();
            if words.is_empty() || words.len() > 5 {
                problems.push(format!("{} {key}: 1 to 5 are wanted", words.len()));
            }
            for word in words.iter().filter_map(|word| word.as_str()) {
                if key == "keywords" && !is_keyword(word) {
                    problems.push(format!("the keyword {word:?} is none"));
                }
            }
        }
        if self.is_library && manifest["metadata"]["docs"]["rs"]["all-features"] != true {
            problems.push("no [package.metadata.docs.rs] with all-features".to_owned());
        }
        let readme = manifest["readme"].as_str().unwrap_or("README.md");
        for file in [readme, "LICENSE-MIT", "LICENSE-APACHE"] {
            if !self.folder.join(file).is_file() {
                problems.push(format!("{file} is not there"));
            }
        }
        problems
    }
}

fn is_keyword(word: &str) -> bool {
    let allowed = |it: u8| it.is_ascii_alphanumeric() || b"-_+".contains(&it);
    word.len() <= 20
        && word.starts_with(|it: char| it.is_ascii_alphanumeric())
        && word.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_release_has_an_entry_with_a_date_that_says_something() {
        let text = "# Changelog\n\n## [Unreleased]\n\n* new\n\n## [0.2.0] - 2026-02-01\n\n* old\n\n## [0.1.0] - 2026-01-01\n";
        assert!(entry(text, "0.2.0", false).unwrap().contains("* old"));
        assert!(entry(text, "0.3.0", true).unwrap().contains("* new"));
        assert!(entry(text, "0.3.0", false).is_err());
        assert!(
            entry(text, "0.1.0", false)
                .unwrap_err()
                .contains("says nothing")
        );
        assert!(entry("\n## [1.0.0] - soon\n\n* all\n", "1.0.0", false).is_err());
    }

    fn package(name: &str, changes: Value) -> Package {
        let mut manifest = json!({
            "name": name, "version": "0.1.0", "manifest_path": "/nowhere/Cargo.toml", "publish": null, "repository": null,
            "description": "what", "license": "MIT", "readme": "README.md", "rust_version": "1.95",
            "keywords": ["a"], "categories": ["b"], "metadata": {"docs": {"rs": {"all-features": true}}},
            "targets": [{"kind": ["lib"]}], "dependencies": [],
        });
        for (key, value) in changes.as_object().unwrap() {
            manifest[key] = value.clone();
        }
        Package::new(manifest).unwrap()
    }

    fn workspace(packages: impl IntoIterator<Item = Package>) -> Workspace {
        Workspace(
            packages
                .into_iter()
                .map(|it| (it.name.clone(), it))
                .collect(),
        )
    }

    fn needing(name: &str, asked: &str, kind: &str) -> Value {
        json!({"dependencies": [{"name": name, "req": asked, "kind": kind}]})
    }

    #[test]
    fn what_is_needed_is_published_first() {
        let all = workspace([
            package("a", needing("z", "^0.1.0", "normal")),
            package("m", needing("a", "^0.1.0", "build")),
            package("z", needing("m", "*", "dev")),
            package("tests", json!({"publish": []})),
        ]);
        let order = all.in_order().unwrap();
        let names: Vec<_> = order.iter().map(|package| package.name.as_str()).collect();
        assert_eq!(names, ["z", "a", "m"]);
        let circle = workspace([
            package("a", needing("b", "^0.1.0", "normal")),
            package("b", needing("a", "^0.1.0", "dev")),
        ]);
        assert!(circle.in_order().is_err());
    }

    #[test]
    fn what_the_registry_would_refuse_is_named() {
        let all = workspace([
            package("good", json!({})),
            package("hidden", json!({"publish": []})),
            package("asks", needing("hidden", "^0.1.0", "normal")),
            package("behind", needing("good", "^0.0.9", "normal")),
            package(
                "poor",
                json!({"description": null, "keywords": ["two words"], "metadata": null}),
            ),
        ]);
        let said = |name: &str| all.problems_of(&all.0[name], "0.1.0").join("\n");
        // Its files are not there either.
        assert_eq!(said("good").lines().count(), 3);
        assert!(said("asks").contains("asks: needs hidden, which is not published"));
        assert!(said("behind").contains("needs good ^0.0.9, which is 0.1.0"));
        for part in ["no description", "two words", "docs.rs"] {
            assert!(said("poor").contains(part), "{part}");
        }
        assert!(
            all.problems_of(&all.0["good"], "0.2.0")
                .join("")
                .contains("has version 0.1.0")
        );
    }
}
