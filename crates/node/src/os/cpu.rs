//! How much processor time this process has used.

/// Whose processor time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuOf {
    /// This process's.
    Process,
    /// The calling thread's.
    Thread,
    /// That of child processes that have ended.
    Children,
}

/// That time in microseconds: in the program itself, and in the kernel for it. Zeros if the kernel does not say.
pub fn cpu_us(of: CpuOf) -> (u64, u64) {
    let who = match of {
        CpuOf::Process => libc::RUSAGE_SELF,
        CpuOf::Thread => libc::RUSAGE_THREAD,
        CpuOf::Children => libc::RUSAGE_CHILDREN,
    };
    // SAFETY: `rusage` is numbers only, for which zeros are a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a `rusage` to write to, and outlives the call, which keeps nothing of it.
    if unsafe { libc::getrusage(who, &mut usage) } != 0 {
        return (0, 0);
    }
    let us = |t: libc::timeval| u64::try_from(t.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(t.tv_usec).unwrap_or(0);
    (us(usage.ru_utime), us(usage.ru_stime))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_computes_has_had_the_processor() {
        let before = cpu_us(CpuOf::Thread);
        let mut n = 1u64;
        while cpu_us(CpuOf::Thread).0 <= before.0 {
            n = std::hint::black_box(n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7));
        }
        let (process, thread) = (cpu_us(CpuOf::Process), cpu_us(CpuOf::Thread));
        assert!(process.0 + process.1 >= before.0 && thread.0 > before.0);
    }
}
