//! Reports the test machines (emulated systems) that failed, and runs them a second time.
//!
//! Under emulation the host decides when a hart runs, so a test that depends on timing can fail
//! although the code is correct. A machine that fails in the suite and passes alone is *unstable*.
//! It is named and counted, but is not a failure. If more than [`MAX_RERUNS`] machines fail, none
//! is repeated and all count as failures. A soak (many repetitions of the tests, and more seeds)
//! repeats no failed machine.

use super::{Run, run_one};
use crate::build::Image;

/// Maximum number of failed machines that are repeated.
const MAX_RERUNS: usize = 3;

/// Number of console lines that are printed up to each failed test, and from the end of the output.
const CONTEXT_LINES: usize = 8;

pub(super) struct Failure {
    pub(super) run: Run,
    pub(super) reason: Option<String>,
    pub(super) output: String,
}

impl Failure {
    /// Returns the lines that explain the failure: failed tests with the lines before them, and the
    /// last lines.
    fn excerpt(&self) -> Vec<&str> {
        let lines: Vec<_> = self.output.lines().collect();
        let is_shown = |at: usize| {
            let next = lines[at..].iter().take(CONTEXT_LINES);
            next.clone().count() < CONTEXT_LINES
                || next.into_iter().any(|line| is_failed_test(line))
        };
        let shown = (0..lines.len()).filter(|at| is_shown(*at));
        shown.map(|at| lines[at]).collect()
    }

    /// Returns the names of the failed tests. If the machine did not end as expected, the
    /// pseudo-test `ends_as_it_should` is added.
    fn tests(&self) -> String {
        let failed = self.output.lines().filter(|line| is_failed_test(line));
        let names = failed.filter_map(|line| line.strip_prefix("test ")?.split(' ').next());
        let end = self.reason.as_ref().map(|_| "ends_as_it_should");
        names.chain(end).collect::<Vec<_>>().join(", ")
    }
}

fn is_failed_test(line: &str) -> bool {
    line.starts_with("test ") && !line.ends_with(" ok")
}

/// Prints the failures in the format of cargo's tests. Returns true if there are none.
pub(super) fn report(failures: &[Failure]) -> bool {
    if failures.is_empty() {
        return true;
    }
    println!("\nfailures:\n");
    for failure in failures {
        let name = &failure.run.name;
        println!("---- {name} ----");
        for line in failure.excerpt() {
            println!("{line}");
        }
        println!("{}\n", failure.reason.as_deref().unwrap_or(""));
    }
    println!("failures:");
    for failure in failures {
        println!("    {}: {}", failure.run.name, failure.tests());
    }
    println!("\ntest result: FAILED. {} machines failed", failures.len());
    false
}

/// Repeats the failed machines, one at a time; returns the machines that fail again.
pub(super) fn rerun(image: &Image, failures: Vec<Failure>) -> Result<Vec<Failure>, String> {
    if failures.len() > MAX_RERUNS {
        return Ok(failures);
    }
    // The failures of the first run are printed in any case.
    report(&failures);
    let mut failed_again = Vec::new();
    for failure in failures {
        let (name, tests) = (failure.run.name.clone(), failure.tests());
        match run_one(image, failure.run)? {
            (_, Some(failure)) => failed_again.push(failure),
            (_, None) => println!("unstable: {name}: {tests}: passed when it was run again"),
        }
    }
    Ok(failed_again)
}

#[cfg(test)]
mod tests {
    use super::super::run_of;
    use super::*;

    #[test]
    fn excerpt_has_the_failed_test_and_the_end() {
        let passed = "test a ... ok\n".repeat(50);
        let failure = Failure {
            run: run_of("smp 1".to_owned(), 1, "init=tests"),
            reason: Some("exit status 1 instead of exit status 0".to_owned()),
            output: format!("{passed}it leaks\ntest b ... FAILED: leaked 2 pages\n{passed}end\n"),
        };
        let shown = failure.excerpt();
        assert!(shown.contains(&"it leaks"));
        assert!(shown.contains(&"test b ... FAILED: leaked 2 pages"));
        assert_eq!(shown.last(), Some(&"end"));
        // The lines up to the failed test, and the lines at the end, with a margin.
        assert!(shown.len() < 3 * CONTEXT_LINES, "{shown:?}");
        assert_eq!(failure.tests(), "b, ends_as_it_should");
    }
}
