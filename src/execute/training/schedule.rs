//! Learning-rate schedules and their spelling: `cosine:lr=1e-3,warmup=100`.

use ampc_passes::step::SpecError;
use ampc_passes::step::spec::Settings;
use std::fmt;
use std::str::FromStr;

/// The learning rate of every step.
///
/// | kind | rate of step t, of n |
/// |---|---|
/// | `constant` | lr |
/// | `linear` | linearly from lr down to `final` |
/// | `cosine` | from lr down to `final` along half a cosine |
/// | `one-cycle` | up from `start` to lr over the fraction `rise` of the steps, then down to `final`, each along half
/// a cosine |
///
/// The first three begin with a warm-up: step t of its w steps has the rate lr · (t + 1) / w. With p = (t − w) /
/// (n − w), `linear` is lr + (final − lr) · p, and `cosine` is final + (lr − final) · (1 + cos πp) / 2, like
/// `torch.optim.lr_scheduler.CosineAnnealingLR` after a warm-up. `one-cycle` is `OneCycleLR` of the same module,
/// without its momentum cycle.
#[derive(Clone, PartialEq, Debug)]
pub struct Schedule {
    /// The course of the rate.
    pub kind: ScheduleKind,
    /// The rate after the warm-up; for `one-cycle`, the maximum rate.
    pub lr: f64,
    /// The number of warm-up steps.
    pub warmup: u64,
    /// The rate at the end.
    pub final_lr: f64,
    /// The number of steps of the schedule, if it differs from the run.
    pub steps: Option<u64>,
}

/// The course of a learning rate.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ScheduleKind {
    /// Constant after the warm-up.
    Constant,
    /// Falls linearly.
    Linear,
    /// Falls along half a cosine.
    Cosine,
    /// Rises and then falls.
    OneCycle {
        /// The rate of the first step.
        start: f64,
        /// The fraction of the steps in which the rate rises.
        rise: f64,
    },
}

impl Schedule {
    /// One rate for all steps.
    pub fn constant(lr: f64) -> Schedule {
        Schedule { kind: ScheduleKind::Constant, lr, warmup: 0, final_lr: lr, steps: None }
    }

    /// The rate of step `step`, counted from 0, in a run of `steps` steps.
    #[expect(clippy::cast_precision_loss, reason = "steps are counted, and far fewer than 2^53")]
    pub fn rate_of(&self, step: u64, steps: u64) -> f64 {
        if step < self.warmup {
            return self.lr * (step + 1) as f64 / self.warmup as f64;
        }
        let steps = self.steps.unwrap_or(steps);
        let falls = |share: f64| self.final_lr + (self.lr - self.final_lr) * share;
        let after = (step - self.warmup) as f64 / steps.saturating_sub(self.warmup).max(1) as f64;
        let after = after.min(1.0);
        let half_cosine = |part: f64| f64::midpoint(1.0, (std::f64::consts::PI * part).cos());
        match self.kind {
            ScheduleKind::Constant => self.lr,
            ScheduleKind::Linear => falls(1.0 - after),
            ScheduleKind::Cosine => falls(half_cosine(after)),
            ScheduleKind::OneCycle { start, rise } => {
                let top = rise * steps as f64 - 1.0;
                let (step, end) = (step as f64, steps.saturating_sub(1) as f64);
                if step <= top && top > 0.0 {
                    return self.lr + (start - self.lr) * half_cosine(step / top);
                }
                falls(half_cosine(((step - top) / (end - top).max(f64::MIN_POSITIVE)).min(1.0)))
            }
        }
    }

    /// True if the rate of a step depends on the number of steps.
    pub fn depends_on_steps(&self) -> bool {
        self.steps.is_none() && self.kind != ScheduleKind::Constant
    }
}

/// The defaults of `one-cycle`, as in torch: the start is lr / 25, and the end is the start / 10⁴.
const START: f64 = 25.0;
const LAST: f64 = 1e4;
const RISE: f64 = 0.3;

/// The kinds of schedules.
const KINDS: [&str; 4] = ["constant", "linear", "cosine", "one-cycle"];

/// Names the rate of a schedule whose first setting is a plain number.
fn with_rate_named(text: &str) -> Option<String> {
    let (kind, settings) = text.split_once(':')?;
    let first = settings.split(',').next()?;
    let is_rate = KINDS.contains(&kind) && first.trim().parse::<f64>().is_ok();
    is_rate.then(|| format!("{kind}:lr={settings}"))
}

impl FromStr for Schedule {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Schedule, SpecError> {
        if let Ok(rate) = text.parse::<f64>() {
            return match is_rate(rate) {
                true => Ok(Schedule::constant(rate)),
                false => Err(SpecError::new(RATE, text)),
            };
        }
        if let Some(meant) = with_rate_named(text) {
            let expected = format!("settings like `key=value` after `:`, such as `{meant}`");
            return Err(SpecError::new(expected, text));
        }
        let mut settings = Settings::of(text)?;
        let kind = settings.kind();
        let known = match kind {
            "constant" => "lr, warmup",
            "linear" | "cosine" => "lr, warmup, final, steps",
            "one-cycle" => "lr, start, final, rise, steps",
            found => {
                let expected = "a number, constant, linear, cosine or one-cycle";
                return Err(SpecError::new(expected, found).with_words(KINDS));
            }
        };
        settings.check(known)?;
        let missing = || SpecError::new(format!("`{kind}:lr=X`, with {RATE}"), text);
        let rate = rate_of(&mut settings, "lr")?.ok_or_else(missing)?;
        let mut schedule = Schedule::constant(rate);
        if kind != "one-cycle" {
            schedule.warmup = settings.number("warmup", "a number of steps")?.unwrap_or(0);
        }
        if kind != "constant" {
            let steps = settings.number::<u64>("steps", "a number of steps")?;
            if steps == Some(0) {
                let expected = "a number of steps, 1 or more, for `steps`";
                return Err(SpecError::new(expected, "0"));
            }
            schedule.steps = steps;
        }
        match kind {
            "constant" => {}
            "one-cycle" => {
                let start = rate_of(&mut settings, "start")?.unwrap_or(rate / START);
                let rise = settings.within("rise", 0.0, 1.0)?.unwrap_or(RISE);
                schedule.final_lr = rate_of(&mut settings, "final")?.unwrap_or(start / LAST);
                schedule.kind = ScheduleKind::OneCycle { start, rise };
            }
            _ => {
                schedule.final_lr = rate_of(&mut settings, "final")?.unwrap_or(0.0);
                schedule.kind = if kind == "linear" { ScheduleKind::Linear } else { ScheduleKind::Cosine };
            }
        }
        Ok(schedule)
    }
}

/// Description of a valid rate.
const RATE: &str = "a finite learning rate, 0 or more";

/// True if a number is a valid rate in f32, the type in which a step takes it.
fn is_rate(rate: f64) -> bool {
    (0.0..=f64::from(f32::MAX)).contains(&rate)
}

fn rate_of(settings: &mut Settings<'_>, key: &str) -> Result<Option<f64>, SpecError> {
    match settings.number::<f64>(key, RATE)? {
        Some(rate) if !is_rate(rate) => Err(SpecError::new(format!("{RATE} for `{key}`"), rate.to_string())),
        rate => Ok(rate),
    }
}

impl fmt::Display for Schedule {
    /// Writes the spelling of the schedule.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Schedule { kind, lr, warmup, final_lr, steps } = self;
        let name = match kind {
            ScheduleKind::Constant if *warmup == 0 => return write!(f, "{lr}"),
            ScheduleKind::Constant => return write!(f, "constant:lr={lr},warmup={warmup}"),
            ScheduleKind::Linear => "linear",
            ScheduleKind::Cosine => "cosine",
            ScheduleKind::OneCycle { .. } => "one-cycle",
        };
        write!(f, "{name}:lr={lr},final={final_lr}")?;
        match kind {
            ScheduleKind::OneCycle { start, rise } => write!(f, ",start={start},rise={rise}")?,
            _ if *warmup > 0 => write!(f, ",warmup={warmup}")?,
            _ => {}
        }
        match steps {
            Some(steps) => write!(f, ",steps={steps}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(text: &str, steps: u64) -> Vec<f64> {
        let schedule: Schedule = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(schedule.to_string().parse(), Ok(schedule.clone()), "{text}");
        (0..steps).map(|step| schedule.rate_of(step, steps)).collect()
    }

    fn near(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() <= 1e-9 * expected.abs().max(1e-3), "{found} {expected}");
        }
    }

    #[test]
    fn rates_are_those_of_the_formulas() {
        near(&rates("0.5", 3), &[0.5, 0.5, 0.5]);
        near(&rates("constant:lr=1,warmup=4", 6), &[0.25, 0.5, 0.75, 1.0, 1.0, 1.0]);
        near(&rates("linear:lr=1,warmup=1,final=0.5", 5), &[1.0, 1.0, 0.875, 0.75, 0.625]);
        near(&rates("linear:lr=1,steps=2", 4), &[1.0, 0.5, 0.0, 0.0]);
    }

    /// The rates of torch 2.15: CosineAnnealingLR(T_max=8, eta_min=0.1) with a rate of 1, and OneCycleLR(max_lr=1)
    /// with 10, 1 and 3 steps.
    #[test]
    fn rates_are_those_of_torch() {
        let cosine = [
            1.0,
            0.965_745_789_630_079,
            0.868_198_051_533_946_4,
            0.722_207_544_564_290_3,
            0.55,
            0.377_792_455_435_709_6,
            0.231_801_948_466_053_65,
            0.134_254_210_369_921_1,
        ];
        near(&rates("cosine:lr=1,final=0.1", 8), &cosine);
        let one_cycle = [
            0.04,
            0.52,
            1.0,
            0.950_484_632_013_473_7,
            0.811_745_653_949_763_5,
            0.611_262_021_936_289_3,
            0.388_741_978_063_710_75,
            0.188_258_346_050_236_97,
            0.049_519_367_986_526_286,
            0.000_004,
        ];
        near(&rates("one-cycle:lr=1", 10), &one_cycle);
        // With so few steps, the maximum lies before the first step.
        near(&rates("one-cycle:lr=1", 1), &[0.000_004]);
        near(&rates("one-cycle:lr=1", 3), &[0.994_415_435_450_911_7, 0.462_637_102_666_975, 0.000_004]);
    }

    #[test]
    fn what_is_no_schedule_is_refused() {
        for (text, expected) in [
            ("fast", "a number, constant, linear, cosine or one-cycle"),
            ("-1", "0 or more"),
            ("1e39", "finite"),
            ("nan", "finite"),
            ("cosine", "`cosine:lr=X`"),
            ("cosine:foo=1", "settings of `cosine`: lr, warmup, final, steps, found `foo`"),
            ("cosine:lr=inf", "finite"),
            ("linear:lr=1,rise=0.5", "lr, warmup, final, steps"),
            ("one-cycle:lr=1,rise=2", "from 0 to 1"),
            ("one-cycle:lr=1,warmup=3", "lr, start, final, rise, steps"),
            ("linear:lr=1,steps=0", "1 or more"),
        ] {
            let error = text.parse::<Schedule>().expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
