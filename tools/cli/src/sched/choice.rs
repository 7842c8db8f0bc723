//! Creates the policy with its parameters from the command line.

use std::fs;
use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use upshift_sched::policies::{Edf, Levels, Reservation, RoundRobin, Solo, Table, Weighted};
use upshift_sched::{Nanos, Policy, TaskId, timetable};

use super::args::{PolicyName, SchedArgs};
use super::tasks::Spec;
use crate::values;

/// Returns the text of the timetable, which is read before any process is elevated; `None` for the
/// policies without a timetable.
pub(super) fn read_timetable(args: &SchedArgs) -> Result<Option<String>> {
    match (&args.file, args.policy) {
        (Some(file), PolicyName::Table) => fs::read_to_string(file)
            .map(Some)
            .with_context(|| format!("cannot read the timetable {}", file.display())),
        (None, PolicyName::Table) => {
            bail!("the policy `table` needs a file: upshift sched table FILE …")
        }
        (Some(file), _) => bail!(
            "`{}` is unexpected: there is a policy already, and only `table` takes a file; commands follow after `--`",
            file.display()
        ),
        (None, _) => Ok(None),
    }
}

pub(super) fn policy(
    args: &SchedArgs,
    specs: &[Spec],
    timetable: Option<&str>,
    min_slice: Duration,
) -> Result<Box<dyn Policy>> {
    let slice = slice(args, min_slice);
    let args_of_tasks = || {
        let arg = |(id, spec): (usize, &'_ Spec)| spec.arg.clone().map(|arg| (TaskId(id), arg));
        specs.iter().enumerate().filter_map(arg)
    };
    let takes_arg = match args.policy {
        PolicyName::Rr | PolicyName::Solo => false,
        PolicyName::Table | PolicyName::Weighted | PolicyName::Edf | PolicyName::Priority => true,
    };
    if !takes_arg && let Some((_, arg)) = args_of_tasks().next() {
        bail!("`{arg}` is unexpected: this policy takes no argument for a process");
    }
    Ok(match args.policy {
        PolicyName::Rr => Box::new(RoundRobin::new(slice)),
        PolicyName::Solo => Box::new(Solo::new()),
        PolicyName::Table => {
            let find = |name: &str| {
                let matches = |spec: &Spec| spec.arg.as_deref() == Some(name) || spec.label == name;
                specs.iter().position(matches).map(TaskId)
            };
            let file = args.file.as_deref().unwrap_or(std::path::Path::new(""));
            let entries = timetable::parse(timetable.unwrap_or_default(), nanos(min_slice), find)
                .with_context(|| format!("error in the timetable {}", file.display()))?;
            Box::new(Table::new(entries))
        }
        PolicyName::Weighted => {
            let mut policy = Weighted::new(slice);
            for (task, arg) in args_of_tasks() {
                let shares = arg.parse().ok().filter(|&shares| shares > 0);
                let shares = shares.with_context(|| {
                    format!("`{arg}` is not a number of shares; write a whole number of at least 1")
                })?;
                policy = policy.share(task, shares);
            }
            Box::new(policy)
        }
        PolicyName::Priority => {
            let mut policy = Levels::new(slice);
            for (task, arg) in args_of_tasks() {
                let level = values::level(&arg).map_err(anyhow::Error::msg)?;
                policy = policy.level(task, level);
            }
            Box::new(policy)
        }
        PolicyName::Edf => {
            let mut policy = Edf::new().slice(slice);
            let capacity = args.cpus().len() as f64 * (1.0 - args.open / 2.0);
            for (task, arg) in args_of_tasks() {
                let reserved = reservation(&arg, min_slice)?;
                policy = policy.reserve(task, reserved, capacity)?;
            }
            Box::new(policy)
        }
    })
}

/// Returns the slice, raised to the shortest timer of this machine.
fn slice(args: &SchedArgs, min_slice: Duration) -> Nanos {
    let has_slices = matches!(
        args.policy,
        PolicyName::Rr | PolicyName::Weighted | PolicyName::Priority | PolicyName::Edf
    );
    if has_slices && args.interval < min_slice {
        // Ignore errors: standard error may be closed.
        let _ = writeln!(
            std::io::stderr(),
            "note: an interval of {} µs is below the shortest timer of this machine; {} µs is used",
            args.interval.as_micros(),
            min_slice.as_micros()
        );
    }
    nanos(args.interval.max(min_slice))
}

fn reservation(text: &str, min_slice: Duration) -> Result<Reservation> {
    let hint = || format!("`{text}` is not a reservation; write PERIOD/BUDGET, e.g. 20ms/5ms");
    let (period, budget) = text.split_once('/').with_context(hint)?;
    let time = |text| upshift_units::positive_duration(text).map_err(anyhow::Error::msg);
    let (period, budget) = (time(period)?, time(budget)?);
    if budget > period {
        bail!(
            "`{text}`: a budget of {budget:?} is longer than its period of {period:?}; write PERIOD/BUDGET, e.g. 20ms/5ms"
        );
    }
    if budget < min_slice {
        bail!(
            "a budget of {} µs is below the shortest timer of this machine ({} µs): make budget and period longer",
            budget.as_micros(),
            min_slice.as_micros()
        );
    }
    Ok(Reservation {
        period: nanos(period),
        budget: nanos(budget),
    })
}

fn nanos(time: Duration) -> Nanos {
    Nanos::try_from(time.as_nanos()).unwrap_or(Nanos::MAX)
}
