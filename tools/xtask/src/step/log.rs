//! Finds in the log of a step the number of passed tests, the tests that skipped themselves, and
//! the lines that explain a failure.

/// Largest number of lines about failed tests that are printed from a failed step's log.
const SHOWN_FAILURES: usize = 150;
/// Number of last lines that are printed from a failed step's log.
const SHOWN_END: usize = 50;

/// Number of lines that are printed from the start, and again from the end, of the output of an
/// unstable test.
const SHOWN_UNSTABLE: usize = 12;

/// Number of lines of a failed step that are printed again at the end of the report. The last lines
/// of the log may add a third of this number.
const SHOWN_FINAL: usize = 25;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) passed: u64,
    pub(super) ignored: u64,
}

/// Adds up the lines `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
pub(super) fn count_passed(log: &str) -> Count {
    let mut count = Count::default();
    let harness = by_test(log).filter(|(test, _)| test.is_none());
    for line in harness.filter_map(|(_, line)| line.strip_prefix("test result: ")) {
        for part in line.split([';', '.']) {
            let mut words = part.split_whitespace();
            let number = words
                .next()
                .and_then(|word| word.parse::<u64>().ok())
                .unwrap_or(0);
            match words.next() {
                Some("passed") => count.passed += number,
                Some("ignored") => count.ignored += number,
                _ => {}
            }
        }
    }
    count
}

/// Formats the number of tests in a log; `None` if no test passed.
pub(super) fn count_tests(log: &str) -> Option<String> {
    let Count { passed, ignored } = count_passed(log);
    if passed == 0 {
        return None;
    }
    let mut count = format!("{passed} tests");
    let skipped = skipped_tests(log).len() as u64;
    let unstable = unstable_tests(log).count() as u64;
    for (number, label) in [
        (ignored, "ignored"),
        (skipped, "of them skipped"),
        (unstable, "unstable"),
    ] {
        if number != 0 {
            count += &format!(", {number} {label}");
        }
    }
    Some(count)
}

/// Returns the reasons of tests that skipped themselves, because a privilege, a program or a file
/// was missing: the reason of each line `skipped: <reason>`, preceded by the name of the test if
/// known.
pub(crate) fn skipped_tests(log: &str) -> Vec<String> {
    let mut skips = Vec::new();
    for (test, line) in by_test(log) {
        // A test may print past the harness, in the middle of the line `test <name> ... `.
        let reason = line.strip_prefix("skipped: ").or_else(|| {
            let (_, reason) = line.strip_prefix("test ")?.split_once(" ... skipped: ")?;
            Some(reason)
        });
        if let Some(reason) = reason {
            let line = match test {
                Some(name) => format!("{name}: {reason}"),
                None => reason.to_owned(),
            };
            if !skips.contains(&line) {
                skips.push(line);
            }
        }
    }
    skips
}

pub(super) const UNSTABLE: &str = "unstable: ";

/// Returns the unstable tests, which failed and passed when they were run again.
pub(crate) fn unstable_tests(log: &str) -> impl Iterator<Item = &str> {
    log.lines().filter_map(|line| line.strip_prefix(UNSTABLE))
}

/// Returns the failed tests, from the list at the end of each test program's output.
pub(super) fn failed_tests(log: &str) -> Vec<&str> {
    let mut is_in_list = false;
    let mut failed = Vec::new();
    for line in log.lines() {
        match line.strip_prefix("    ") {
            Some(name) if is_in_list => failed.push(name),
            _ => is_in_list = line == "failures:",
        }
    }
    failed
}

/// Returns the lines of a log, each with the test that printed the line, if the harness captured
/// the line.
fn by_test(log: &str) -> impl Iterator<Item = (Option<&str>, &str)> {
    let mut test = None;
    log.lines().map(move |line| {
        let header = line.strip_prefix("---- ");
        if let Some(name) = header.and_then(|line| line.strip_suffix(" stdout ----")) {
            test = Some(name);
        } else if line == "successes:" || line == "failures:" {
            test = None;
        }
        (test, line)
    })
}

/// Returns the output of failed tests, shortened to the length shown for a failed step.
fn failures<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    let mut shown = all_failures(lines);
    if shown.len() > SHOWN_FAILURES {
        shown.truncate(SHOWN_FAILURES);
        shown.push("(more failures are in the log)");
    }
    shown
}

fn all_failures<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    let mut shown = Vec::new();
    let mut is_in_failures = false;
    for line in lines {
        is_in_failures |= *line == "failures:";
        if is_in_failures {
            shown.push(*line);
        }
        is_in_failures &= !line.starts_with("test result:");
    }
    shown
}

/// Returns the output of unstable tests, with the middle of long outputs left out.
pub(crate) fn outline(log: &str) -> Vec<&str> {
    let lines = all_failures(&log.lines().collect::<Vec<_>>());
    let mut shown = Vec::new();
    for output in lines.chunk_by(|_, next| !next.starts_with("---- ")) {
        let (first, rest) = output.split_at(SHOWN_UNSTABLE.min(output.len()));
        shown.extend(first);
        let left_out = rest.len().saturating_sub(SHOWN_UNSTABLE);
        if left_out != 0 {
            shown.push("(lines left out)");
        }
        shown.extend(&rest[left_out..]);
    }
    shown
}

/// Returns the lines most likely to explain a failure: panics and names of tests, else the last
/// lines.
pub(crate) fn final_messages(log: &str) -> Vec<&str> {
    let lines: Vec<_> = log.lines().collect();
    let mut messages: Vec<&str> = Vec::new();
    let mut panic_lines_left = 0;
    for line in all_failures(&lines) {
        if line.contains("panicked at") {
            panic_lines_left = 4;
        }
        if panic_lines_left != 0 || line.starts_with("---- ") {
            messages.push(line);
        }
        panic_lines_left = usize::saturating_sub(panic_lines_left, 1);
    }
    messages.truncate(SHOWN_FINAL);
    let space = SHOWN_FINAL - messages.len();
    let end = lines.len().saturating_sub(space.max(SHOWN_FINAL / 3));
    messages.extend(&lines[end..]);
    messages
}

/// Returns the output of failed tests, wherever it is, and the end of the log.
pub(crate) fn excerpt(text: &str) -> Vec<&str> {
    let lines: Vec<_> = text.lines().collect();
    let end = lines.len().saturating_sub(SHOWN_END);
    let mut shown = failures(&lines[..end]);
    if !shown.is_empty() {
        shown.push("(the end:)");
    }
    shown.extend(&lines[end..]);
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_has_the_failures_and_the_end() {
        let passed = "test a ... ok\n".repeat(200);
        let failed = "test b ... FAILED\n\nfailures:\n\n---- b stdout ----\nthread 'b' panicked\n\n\
                      failures:\n    b\n\ntest result: FAILED. 0 passed; 1 failed\n";
        let log = format!("{passed}{failed}{passed}error: 1 target failed\n");
        let shown = excerpt(&log);
        assert_eq!(shown.first(), Some(&"failures:"));
        assert!(shown.contains(&"thread 'b' panicked"));
        assert_eq!(shown.last(), Some(&"error: 1 target failed"));
        assert_eq!(
            shown.iter().filter(|line| line.ends_with("ok")).count(),
            SHOWN_END - 1
        );
        assert_eq!(excerpt("a\nb"), ["a", "b"]);
    }

    #[test]
    fn an_unstable_test_is_shown_without_the_middle_of_its_output() {
        let long = "said\n".repeat(100);
        let log = format!(
            "failures:\n\n---- a stdout ----\n{long}---- b stdout ----\nthread 'b' panicked\n\n\
             failures:\n    a\n\ntest result: FAILED. 0 passed; 2 failed\nunstable: a\n"
        );
        let shown = outline(&log);
        assert!(shown.contains(&"---- a stdout ----"));
        assert!(shown.contains(&"(lines left out)"));
        assert!(shown.contains(&"thread 'b' panicked"));
        // The first output is cut to 2 * 12 lines and a note; the rest of the log has 9 lines.
        assert!(shown.len() < 40, "{} lines are shown", shown.len());
    }

    #[test]
    fn final_messages_are_the_panics_and_the_end() {
        let long = "said\n".repeat(300);
        let log = format!(
            "failures:\n\n---- b stdout ----\n{long}thread 'b' panicked at b.rs:1:1:\nleft != right\n{long}\n\
             failures:\n    b\n\ntest result: FAILED. 0 passed; 1 failed\nerror: 1 target failed\n"
        );
        let shown = final_messages(&log);
        assert_eq!(shown.last(), Some(&"error: 1 target failed"));
        assert!(final_messages("a\nb") == ["a", "b"]);
        assert!(shown.len() <= SHOWN_FINAL + SHOWN_FINAL / 3);
    }

    #[test]
    fn tests_that_skip_themselves_are_named() {
        let log = "test a ... ok\ntest b ... skipped: b: no root\nok\nskipped: c: no rights\n\nsuccesses:\n\n\
                   ---- tools::d stdout ----\nskipped: h2spec is not installed\n\nsuccesses:\n    tools::d\n\n\
                   test result: ok. 4 passed; 0 failed\nskipped: e: no file\n";
        let expected = [
            "b: no root",
            "c: no rights",
            "tools::d: h2spec is not installed",
            "e: no file",
        ];
        assert_eq!(skipped_tests(log), expected);
        assert_eq!(
            count_tests(log).as_deref(),
            Some("4 tests, 4 of them skipped")
        );
    }

    #[test]
    fn tests_of_all_harnesses_are_added_up() {
        let log = "running 2 tests\n---- a stdout ----\ntest result: ok. 1 passed; a child of a test\n\nsuccesses:\n    a\n\n\
            test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
            test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.50s\n";
        assert_eq!(count_tests(log).as_deref(), Some("5 tests, 1 ignored"));
        assert_eq!(count_tests("nothing here"), None);
    }
}
