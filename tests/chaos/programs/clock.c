/* A fake clock for the programs of this test. It replaces libc's clock_gettime (LD_PRELOAD) and adds offsets to two clocks.
 * The file named by CHAOS_CLOCK contains the offsets as two numbers of nanoseconds: for CLOCK_REALTIME, which an
 * administrator can set, and for CLOCK_BOOTTIME, which continues while the machine is suspended. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static const volatile int64_t *jumps;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void)
{
    *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
    const char *name = getenv("CHAOS_CLOCK");
    int file = name == NULL ? -1 : open(name, O_RDONLY | O_CLOEXEC);
    void *map = file < 0 ? MAP_FAILED : mmap(NULL, 2 * sizeof *jumps, PROT_READ, MAP_SHARED, file, 0);
    if (map == MAP_FAILED) abort();
    jumps = map;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    if (real == NULL) begin();
    int result = real(clock, now);
    if (result != 0 || (clock != CLOCK_REALTIME && clock != CLOCK_BOOTTIME)) return result;
    int64_t nanos = now->tv_nsec + jumps[clock == CLOCK_BOOTTIME] % 1000000000;
    now->tv_sec += (time_t)(jumps[clock == CLOCK_BOOTTIME] / 1000000000);
    if (nanos < 0) nanos += 1000000000, now->tv_sec--;
    if (nanos >= 1000000000) nanos -= 1000000000, now->tv_sec++;
    now->tv_nsec = (long)nanos;
    return 0;
}
