//! Decides whether a law is broken, between any two events and when a poll begins.

use upshift_core::Level;

use super::{Activity, Law, Laws, Phase, Tracked, Violation};
use crate::world::World;

impl Laws {
    /// Checks the poll that a vCPU begins or resumes after its last pick.
    pub(crate) fn check_poll(
        &mut self,
        world: &World,
        vcpu: usize,
        resumed: bool,
    ) -> Result<(), Violation> {
        let pick = self.picks[vcpu];
        let Some((k, level)) = pick.chosen else {
            return Ok(());
        };
        self.set_activity(world.now(), vcpu, Activity::Polling(k));
        if !self.enabled {
            return Ok(());
        }
        let is_of_floor = |level| {
            self.floor
                .as_ref()
                .is_some_and(|floor| floor.contains(level))
        };
        // A poll of the floor (the reserved share of less urgent levels) may go ahead of urgent
        // work, within the bound of the law of the floor.
        let is_floor_poll = is_of_floor(level);
        let ready_first = |tracked: &Tracked| {
            tracked.is_settled()
                && tracked.may_run_on(vcpu)
                && tracked.level < level
                && tracked.settled < pick.began
        };
        let urgent_waits = is_floor_poll
            && (self.all.iter().enumerate()).any(|(other, tracked)| {
                other != k && ready_first(tracked) && !is_of_floor(tracked.level)
            });
        // A poll that the floor puts ahead of urgent work is picked from the vCPU's own queues
        // only, so with several vCPUs a more urgent coroutine of the floor may wait elsewhere.
        let in_order = !urgent_waits || self.picks.len() == 1;
        let is_fifo = self.picks.len() == 1 && !resumed;
        let overtaken = self.all.iter().enumerate().find(|(other, tracked)| {
            let is_candidate = *other != k && tracked.is_settled() && tracked.may_run_on(vcpu);
            let goes_first = ready_first(tracked)
                && (!is_floor_poll || (in_order && is_of_floor(tracked.level)));
            let was_earlier =
                is_fifo && tracked.level == level && tracked.settled_pick < self.all[k].ready_pick;
            is_candidate && (goes_first || was_earlier)
        });
        let Some((other, tracked)) = overtaken else {
            if let Some(floor) = &mut self.floor {
                let ready = world.cpus[vcpu].executor.bitmap();
                floor.record_poll(vcpu, level, urgent_waits, ready);
            }
            return Ok(());
        };
        let description = format!(
            "vCPU {vcpu} polls #{k} of level {level} while #{other} of level {} is ready",
            tracked.level
        );
        Err(self.violation(world, Law::Order, description))
    }

    /// Returns the level at which a vCPU polls coroutine `k`. A poll that cannot be interrupted is
    /// judged by its level at the start if its coroutine becomes less urgent in the middle.
    fn level_of_poll(&self, vcpu: usize, k: usize) -> u8 {
        let level = self.all[k].level;
        match self.picks[vcpu].chosen {
            Some((chosen, began)) if self.is_inline && chosen == k => level.min(began),
            _ => level,
        }
    }

    /// Checks the time until the next event, in which no state changes.
    pub(crate) fn check_until(&mut self, world: &World, until: u64) -> Result<(), Violation> {
        if !self.enabled {
            return Ok(());
        }
        self.read_levels(world);
        if world.is_quiescent() {
            self.check_truth(world)?;
        }
        let (from, bound) = (
            std::mem::replace(&mut self.time, until),
            self.conservation_bound,
        );
        if from == until {
            return Ok(());
        }
        self.check_floor(world, until - from)?;
        let mut broken = None;
        for k in 0..self.all.len() {
            let tracked = &self.all[k];
            let Some(since) = tracked.waits_since(from).filter(|since| *since < until) else {
                continue;
            };
            let (mut idle, mut less_urgent) = (false, false);
            for (vcpu, activity) in self.activity.iter().enumerate() {
                if tracked.may_run_on(vcpu) {
                    idle |= *activity == Activity::Idle;
                    less_urgent |= matches!(activity, Activity::Polling(x) if self.level_of_poll(vcpu, *x) > tracked.level);
                }
            }
            let time = until - since;
            let tracked = &mut self.all[k];
            tracked.while_idle = if idle { tracked.while_idle + time } else { 0 };
            tracked.behind_less_urgent += if idle || less_urgent { time } else { 0 };
            let longest = &mut self.longest;
            longest.while_idle = longest.while_idle.max(tracked.while_idle);
            longest.behind_less_urgent = longest.behind_less_urgent.max(tracked.behind_less_urgent);
            if tracked.while_idle > bound {
                broken = broken.or(Some((Law::Conservation, k)));
            } else if tracked.behind_less_urgent > self.progress_bound {
                broken = broken.or(Some((Law::Progress, k)));
            }
        }
        match broken {
            None => Ok(()),
            Some((law, k)) => Err(self.waited_too_long(world, law, k)),
        }
    }

    /// Checks that no coroutine still waits when no event is left.
    pub(crate) fn check_end(&mut self, world: &World) -> Result<(), Violation> {
        let waits = |tracked: &Tracked| {
            tracked
                .waits_since(0)
                .is_some_and(|since| since <= world.now())
        };
        let stuck = self
            .all
            .iter()
            .position(|tracked| waits(tracked) || tracked.phase == Phase::Suspended);
        match stuck {
            Some(k) if self.enabled => {
                let description = format!("#{k} is {:?} and waits for ever", self.all[k].phase);
                Err(self.violation(world, Law::Conservation, description))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn endless_violation(&self, world: &World) -> Violation {
        self.violation(
            world,
            Law::Progress,
            "the vCPUs spin without progress".into(),
        )
    }

    /// Updates the levels, since lending and `reprio` change levels without a reported step.
    fn read_levels(&mut self, world: &World) {
        for k in 0..self.all.len() {
            let tracked = &mut self.all[k];
            if matches!(tracked.phase, Phase::New | Phase::Exited) {
                continue;
            }
            if let Some(level) = tracked.id.and_then(|id| world.domain.level(id).ok())
                && level.get() != tracked.level
            {
                tracked.level = level.get();
                self.requeue_at_new_level(k);
            }
        }
    }

    fn requeue_at_new_level(&mut self, k: usize) {
        let pick = self.picks[0].count;
        self.requeue(k);
        let tracked = &mut self.all[k];
        // The coroutine counts as if it had become ready now, since the poll under way may have
        // become less urgent than the coroutine.
        tracked.behind_less_urgent = 0;
        tracked.ready_pick = pick;
    }

    /// Moves coroutine `k`, whose level may have changed and changed back, to the tail of its
    /// level.
    pub(crate) fn requeue(&mut self, k: usize) {
        let (stamp, pick) = (self.stamp(), self.picks[0].count);
        let tracked = &mut self.all[k];
        (tracked.settled, tracked.settled_pick) = (stamp, pick);
    }

    fn check_truth(&self, world: &World) -> Result<(), Violation> {
        let bitmap = world.domain.bitmap();
        let hidden = |tracked: &Tracked| tracked.is_settled() && bitmap & (1 << tracked.level) == 0;
        if let Some(k) = self.all.iter().position(hidden) {
            let description = format!(
                "#{k} of level {} is ready and not in the bitmap {bitmap:#x}",
                self.all[k].level
            );
            return Err(self.violation(world, Law::Truth, description));
        }
        let mut idle = 0;
        for (vcpu, (cpu, activity)) in world.cpus.iter().zip(&self.activity).enumerate() {
            let executor = &cpu.executor;
            idle += usize::from(executor.is_parked());
            let Activity::Polling(k) = *activity else {
                continue;
            };
            let level = self.all[k].level;
            let shown = executor.running_level().map(Level::get);
            if shown.is_none_or(|shown| shown < level) {
                let description = format!("vCPU {vcpu} polls level {level} and shows {shown:?}");
                return Err(self.violation(world, Law::Truth, description));
            }
            let ready_before_poll = self
                .floor
                .as_ref()
                .map_or(0, |floor| floor.ready_before_poll(vcpu));
            let more_urgent = ((1_u64 << level) - 1) & !ready_before_poll;
            if executor.bitmap() & more_urgent != 0 && !executor.need_preempt() {
                let description = format!(
                    "vCPU {vcpu} polls level {level}, has {:#x} ready, and is not asked to yield",
                    executor.bitmap()
                );
                return Err(self.violation(world, Law::Truth, description));
            }
        }
        self.check_lending(world)?;
        if idle != world.domain.idle_vcpus() {
            let description = format!(
                "{idle} vCPUs are parked, and {} are counted",
                world.domain.idle_vcpus()
            );
            return Err(self.violation(world, Law::Truth, description));
        }
        Ok(())
    }

    fn waited_too_long(&self, world: &World, law: Law, k: usize) -> Violation {
        let tracked = &self.all[k];
        let (time, bound, beside) = match law {
            Law::Conservation => (
                tracked.while_idle,
                self.conservation_bound,
                "beside an idle vCPU",
            ),
            _ => (
                tracked.behind_less_urgent,
                self.progress_bound,
                "while less urgent work ran",
            ),
        };
        let micros = |time: u64| time as f64 / 1e3;
        let description = format!(
            "#{k} of level {}, {:?}, has waited {:.3} µs {beside}; the bound is {:.3} µs",
            tracked.level,
            tracked.phase,
            micros(time),
            micros(bound)
        );
        self.violation(world, law, description)
    }

    pub(super) fn violation(&self, world: &World, law: Law, description: String) -> Violation {
        Violation {
            law,
            at: self.time.max(world.now()),
            description,
            timeline: self.timeline.clone(),
        }
    }
}
