/* A fake NVML driver for tests: the boards are plain structs in a file that Python maps too.
 *
 * The file is named by WATTLAW_FAKE_NVML; without that variable it is MACHINE, whose boards only
 * root may limit, as real ones. __init__.py beside this file has the same structs. Every
 * call holds a lock on the file, so that several processes see whole states, and the death of a
 * process releases it. Physics: a board draws min(square wave, enforced limit). Each change of
 * either starts a new segment, which knows the sums up to its start; so all integrals are exact and
 * no counter jumps. Times are CLOCK_REALTIME nanoseconds; the wave's phase is 0 at boot_ns. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_BOARDS = 8, MAX_MIG = 4, MAX_SEGMENTS = 256, MAX_FAULTS = 16, MAX_COUNTED = 64 };
enum { MAX_LIES = 16 };
enum { NO_BOARD = -1, BAD_HANDLE = -2 };
enum { FAULT_CODE = 1, FAULT_HANG = 2 };
enum { COUNTER_OK, COUNTER_ABSENT, COUNTER_STILL, COUNTER_BACK, COUNTER_RESTARTS };
/* What a board says wrongly for a while, and how: see struct lie. */
enum { LIE_POWER = 1, LIE_COUNTER, LIE_SM_UTIL, LIE_MEM_UTIL, LIE_SM_CLOCK, LIE_MEM_CLOCK,
       LIE_TEMPERATURE, LIE_MEMORY, LIE_LIMIT, LIE_MAX_LIMIT, LIE_REASONS, LIE_VIOLATION,
       LIE_SAMPLE_TIME };
enum { LIE_SETS = 1, LIE_SCALES, LIE_ADDS, LIE_FREEZES };
enum { SETTER_WORKS, SETTER_DOES_NOTHING, SETTER_IS_LATE, SETTER_IS_UNDONE };
enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4,
    NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15,
    LIB_RM_VERSION_MISMATCH = 18, MEMORY = 20, ARGUMENT_VERSION_MISMATCH = 25, UNKNOWN = 999
};
enum { TYPE_UINT = 1, TYPE_ULL = 3 };
#define MACHINE "/run/wattlaw-fake-nvml/boards" /* made on the nodes of tests/slurm */
#define MAGIC 0x4c4d564e454b4146ULL /* "FAKENVML" */

/* ---- the file ---- */
struct fault {
    char function[64];
    int32_t board, kind, code, after_calls, for_calls, seen; /* for_calls 0: it does not heal */
    int64_t from_ns, to_ns;                                  /* to_ns 0: it does not heal */
};
/* From from_ns until to_ns (0: for ever) a value is another: value itself, the true one times
 * factor, the true one plus value (modulo 2^64), or the true one as it was at from_ns. */
struct lie { int64_t from_ns, to_ns; int32_t what, how; uint64_t value; double factor; };
struct count { char function[64]; int64_t calls; };
struct sums { double energy_mj, violation_ns, high_s; };
struct segment {
    int64_t start_ns;
    struct sums before;
    double low_w, high_w, period_s, duty, enforced_mw;
};
struct header {
    uint64_t magic;
    int32_t header_size, board_size;
    int64_t boot_ns;
    int32_t board_count, root, call_us;
    int32_t order[MAX_BOARDS]; /* which board has which index */
    struct fault faults[MAX_FAULTS];
    struct count counts[MAX_COUNTED];
};
struct board {
    char uuid[96], name[64], bus_id[32];
    double low_w, high_w, period_s, duty;
    int32_t minor, limit_min_mw, limit_max_mw, limit_default_mw, limit_mw, clamp_mw;
    int32_t locked_min_mhz, locked_max_mhz, sm_clock_mhz, mem_clock_mhz;
    int32_t clock_min_mhz, clock_max_mhz, clock_step_mhz;
    int32_t counter_mode, refresh_ms;
    int32_t instant_power, average_power, buffers, buffer_period_ms, buffer_length;
    int32_t sm_util_high, sm_util_low, mem_util_high, mem_util_low;
    int32_t temperature_c, mig_mode, mig_count, persistence, pstate;
    int32_t virtualization; /* 2: a vGPU in a virtual machine, without power and energy */
    int32_t capability;     /* of CUDA, times ten */
    int32_t module_mw, module_counter; /* what else the module draws (0: none), and if it counts */
    int32_t module_repeats;            /* no module, but the GPU's power again under its scope */
    int64_t fault_ns, lost_ns, back_ns; /* lost from lost_ns to back_ns (0: for ever) */
    int64_t set_ns;                     /* of the last power limit that was set */
    int32_t setter_mode, setter_ms, clock_setter_mode, limit_before_mw;
    struct lie lies[MAX_LIES];
    uint64_t memory_used, memory_total;
    uint64_t profiles, requested_profiles, refused_profiles; /* masks; refused: never enforced */
    char mig_uuid[MAX_MIG][96];
    int64_t segment_count; /* all there ever were; number k lies at segments[k % MAX_SEGMENTS] */
    struct segment segments[MAX_SEGMENTS];
};
struct state { struct header header; struct board boards[MAX_BOARDS]; };

/* ---- what callers pass ---- */
struct handle { int board, mig; }; /* mig: -1 for the board itself */
typedef struct handle *Device;
union value { double d; unsigned ui; unsigned long long ull; };
struct sample { unsigned long long timestamp; union value value; };
struct utilization { unsigned gpu, memory; };
struct violation { unsigned long long reference_us, violation_ns; };
struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
struct temperature { unsigned version, sensor; int celsius; };
struct pci {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};
struct field {
    uint32_t id, scope;
    int64_t timestamp_us, latency_us;
    unsigned type, result;
    union value value;
};
struct mask { unsigned words[8]; };
struct profile_info { unsigned version, id, priority; struct mask conflicts; };
struct profiles_info { unsigned version; struct mask offered; struct profile_info each[255]; };
struct current_profiles { unsigned version; struct mask offered, requested, enforced; };
struct requested_profiles { unsigned version; struct mask requested; };

static struct state *state;
static int state_fd = -1, users;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct handle handles[MAX_BOARDS][1 + MAX_MIG];

/* Lets Python check that a loaded libnvidia-ml.so.1 is this one. */
const int wattlaw_fake_nvml = 1;

/* ---- physics ---- */
static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Return the moment whose value a board says at a moment: another one where it is frozen. */
static int64_t moment(const struct board *b, int what, int64_t ns)
{
    for (const struct lie *l = b->lies; l < b->lies + MAX_LIES; l++)
        if (l->what == what && l->how == LIE_FREEZES && ns >= l->from_ns && (!l->to_ns || ns < l->to_ns))
            return l->from_ns;
    return ns;
}

/* Return what a board says of a true value: the lies about it that are told at a moment, in turn. */
static unsigned long long said(const struct board *b, int what, int64_t ns, unsigned long long told)
{
    for (const struct lie *l = b->lies; l < b->lies + MAX_LIES; l++) {
        if (l->what != what || ns < l->from_ns || (l->to_ns && ns >= l->to_ns)) continue;
        if (l->how == LIE_SETS) told = l->value;
        if (l->how == LIE_SCALES) told = (unsigned long long)((double)told * l->factor);
        if (l->how == LIE_ADDS) told += l->value;
    }
    return told;
}

/* The nanoseconds from the last rise of the wave to a time, and those for which it stays high. */
static int64_t phase_ns(const struct segment *s, int64_t ns, int64_t *period_ns, int64_t *high_ns)
{
    *period_ns = llround(s->period_s * 1e9);
    *high_ns = llround(s->duty * s->period_s * 1e9);
    int64_t phase = *period_ns > 0 ? (ns - state->header.boot_ns) % *period_ns : 0;
    return phase < 0 ? phase + *period_ns : phase;
}

static int is_high(const struct segment *s, int64_t ns)
{
    int64_t period_ns, high_ns;
    return phase_ns(s, ns, &period_ns, &high_ns) < high_ns || period_ns <= 0;
}

/* Seconds for which the wave was high since boot, had it always been this segment's. */
static double high_s(const struct segment *s, int64_t ns)
{
    int64_t period_ns, high_ns, phase = phase_ns(s, ns, &period_ns, &high_ns);
    int64_t up_ns = ns - state->header.boot_ns;
    if (period_ns <= 0) return (double)up_ns / 1e9;
    up_ns = (up_ns - phase) / period_ns * high_ns + (phase < high_ns ? phase : high_ns);
    return (double)up_ns / 1e9;
}

static const struct segment *segment_at(const struct board *b, int64_t ns)
{
    int64_t k = b->segment_count - 1, oldest = k >= MAX_SEGMENTS ? k - MAX_SEGMENTS + 1 : 0;
    while (k > oldest && b->segments[k % MAX_SEGMENTS].start_ns > ns) k--;
    return &b->segments[k % MAX_SEGMENTS];
}

static struct sums sums_at(const struct board *b, int64_t ns)
{
    const struct segment *s = segment_at(b, ns);
    double high = high_s(s, ns) - high_s(s, s->start_ns);
    double low = (double)(ns - s->start_ns) / 1e9 - high;
    struct sums sums = s->before;
    sums.energy_mj += high * fmin(s->high_w * 1e3, s->enforced_mw);
    sums.energy_mj += low * fmin(s->low_w * 1e3, s->enforced_mw);
    if (s->high_w * 1e3 > s->enforced_mw) sums.violation_ns += high * 1e9;
    if (s->low_w * 1e3 > s->enforced_mw) sums.violation_ns += low * 1e9;
    sums.high_s += high;
    return sums;
}

static double model_mw(const struct board *b, int64_t ns)
{
    const struct segment *s = segment_at(b, ns);
    return 1e3 * (is_high(s, ns) ? s->high_w : s->low_w);
}

static unsigned instant_mw(const struct board *b, int64_t ns)
{
    int64_t of_ns = moment(b, LIE_POWER, ns);
    double mw = fmin(model_mw(b, of_ns), segment_at(b, of_ns)->enforced_mw);
    return (unsigned)said(b, LIE_POWER, ns, (unsigned long long)llround(mw));
}

static unsigned average_mw(const struct board *b, int64_t ns)
{
    int64_t of_ns = moment(b, LIE_POWER, ns), before_ns = of_ns - 1000000000LL;
    double mw = sums_at(b, of_ns).energy_mj - sums_at(b, before_ns).energy_mj;
    return (unsigned)said(b, LIE_POWER, ns, (unsigned long long)llround(mw));
}

static int32_t enforced_mw(const struct board *b)
{
    return b->limit_mw > b->clamp_mw ? b->limit_mw : b->clamp_mw;
}

static void start_segment_at(struct board *b, int64_t ns)
{
    double cap_mw = enforced_mw(b);
    struct segment next = {ns, sums_at(b, ns), b->low_w, b->high_w, b->period_s, b->duty, cap_mw};
    b->segments[b->segment_count % MAX_SEGMENTS] = next;
    b->segment_count++;
}

static void start_segment(struct board *b) { start_segment_at(b, now_ns()); }

/* Let a limit that was set late, or is undone, count from its moment on. */
static void settle(struct board *b)
{
    int64_t due_ns = b->set_ns + b->setter_ms * 1000000LL;
    if (!b->set_ns || now_ns() < due_ns) return;
    b->set_ns = 0;
    b->limit_mw = b->limit_before_mw;
    start_segment_at(b, due_ns);
}

/* The last instant at or before ns at which something with a period (in ms) happened. */
static int64_t grid_ns(int64_t ns, int64_t period_ms)
{
    int64_t period_ns = (period_ms > 0 ? period_ms : 1) * 1000000LL;
    return ns - (ns - state->header.boot_ns) % period_ns;
}

static unsigned long long counter_mj(const struct board *b, int64_t now)
{
    int64_t ns = moment(b, LIE_COUNTER, now), refresh_ns = grid_ns(ns, b->refresh_ms);
    int broken = refresh_ns >= b->fault_ns;
    double mj = sums_at(b, refresh_ns).energy_mj;
    if (broken && b->counter_mode == COUNTER_STILL) mj = sums_at(b, b->fault_ns).energy_mj;
    if (broken && b->counter_mode == COUNTER_BACK) mj -= 50e3;
    if (b->module_counter) mj += b->module_mw * (double)(refresh_ns - state->header.boot_ns) / 1e9;
    if (broken && b->counter_mode == COUNTER_RESTARTS) mj -= sums_at(b, b->fault_ns).energy_mj;
    /* 1 nJ: 19.999999999 is 20 */
    return said(b, LIE_COUNTER, now, (unsigned long long)fmax(0, mj + 1e-6));
}

static unsigned sm_util(const struct board *b, int64_t ns)
{
    int32_t percent = is_high(segment_at(b, ns), ns) ? b->sm_util_high : b->sm_util_low;
    return (unsigned)said(b, LIE_SM_UTIL, ns, (unsigned)percent);
}

static unsigned mem_util(const struct board *b, int64_t ns)
{
    int32_t percent = is_high(segment_at(b, ns), ns) ? b->mem_util_high : b->mem_util_low;
    return (unsigned)said(b, LIE_MEM_UTIL, ns, (unsigned)percent);
}

static unsigned sm_clock(const struct board *b)
{
    int locked = b->locked_max_mhz && b->clock_setter_mode == SETTER_WORKS;
    unsigned mhz = (unsigned)(locked ? b->locked_max_mhz : b->sm_clock_mhz);
    return (unsigned)said(b, LIE_SM_CLOCK, now_ns(), mhz);
}

static unsigned mem_clock(const struct board *b)
{
    return (unsigned)said(b, LIE_MEM_CLOCK, now_ns(), (unsigned)b->mem_clock_mhz);
}

static unsigned temperature(const struct board *b)
{
    return (unsigned)said(b, LIE_TEMPERATURE, now_ns(), (unsigned)b->temperature_c);
}

static unsigned said_enforced_mw(const struct board *b)
{
    return (unsigned)said(b, LIE_LIMIT, now_ns(), (unsigned)enforced_mw(b));
}

static unsigned max_limit_mw(const struct board *b)
{
    return (unsigned)said(b, LIE_MAX_LIMIT, now_ns(), (unsigned)b->limit_max_mw);
}

static unsigned long long violation_ns(const struct board *b, int64_t ns)
{
    return said(b, LIE_VIOLATION, ns, (unsigned long long)sums_at(b, ns).violation_ns);
}

/* ---- every call: lock, count, burn, fault, lost ---- */
static void lock(void)
{
    pthread_mutex_lock(&mutex);
    while (state_fd >= 0 && flock(state_fd, LOCK_EX) != 0) continue;
}

static void unlock(void)
{
    if (state_fd >= 0) flock(state_fd, LOCK_UN);
    pthread_mutex_unlock(&mutex);
}

static void leave(int *held) { if (*held) unlock(); }

static void count_call(const char *name)
{
    for (struct count *c = state->header.counts; c < state->header.counts + MAX_COUNTED; c++) {
        if (!c->function[0]) strncpy(c->function, name, sizeof c->function - 1);
        if (strcmp(c->function, name)) continue;
        __atomic_fetch_add(&c->calls, 1, __ATOMIC_RELAXED);
        return;
    }
}

static struct fault *fault_of(const char *name, int board)
{
    for (struct fault *f = state->header.faults; f < state->header.faults + MAX_FAULTS; f++) {
        if (!f->kind || strcmp(f->function, name)) continue;
        if (f->board != -1 && f->board != board) continue;
        if (now_ns() < f->from_ns || (f->to_ns && now_ns() >= f->to_ns)) continue;
        int seen = f->seen++ - f->after_calls;
        if (seen >= 0 && (!f->for_calls || seen < f->for_calls)) return f;
    }
    return NULL;
}

static void burn(int64_t us)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    int64_t end_ns = t.tv_sec * 1000000000LL + t.tv_nsec + us * 1000;
    while (t.tv_sec * 1000000000LL + t.tv_nsec < end_ns) clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
}

/* For ever, as long as the fault is in the table: clear_faults() lets the thread go on. */
static void hang(long place)
{
    for (int hanging = 1; hanging;) {
        nanosleep(&(struct timespec){0, 5000000}, NULL);
        lock();
        hanging = state && state->header.faults[place].kind == FAULT_HANG;
        unlock();
    }
}

/* Return an NVML code; unless the library is not initialised, the lock is held from here on. */
static int enter(const char *name, int board, int *held)
{
    lock();
    *held = 1;
    if (!state) return UNINITIALIZED;
    count_call(name);
    int64_t call_us = state->header.call_us;
    struct fault *found = fault_of(name, board), fault = {.kind = 0};
    if (found) fault = *found;
    long place = found ? found - state->header.faults : 0;
    if (call_us || fault.kind) { /* time passes without the lock */
        unlock();
        *held = 0;
        if (call_us) burn(call_us);
        if (fault.kind == FAULT_CODE) return fault.code;
        if (fault.kind == FAULT_HANG) hang(place);
        lock();
        *held = 1;
        if (!state) return UNKNOWN;
    }
    if (board == BAD_HANDLE) return INVALID_ARGUMENT;
    if (board < 0) return SUCCESS;
    struct board *b = &state->boards[board];
    int64_t ns = now_ns();
    settle(b);
    return b->lost_ns && ns >= b->lost_ns && (!b->back_ns || ns < b->back_ns) ? GPU_IS_LOST : SUCCESS;
}

static int board_of(Device h)
{
    uintptr_t offset = (uintptr_t)h - (uintptr_t)handles;
    if (offset >= sizeof handles || offset % sizeof *h) return BAD_HANDLE;
    return h->board;
}

#define ENTER_BOARD(number)                                                                        \
    __attribute__((cleanup(leave))) int held = 0;                                                  \
    int entered = enter(__func__, number, &held);                                                  \
    if (entered != SUCCESS) return entered
#define ENTER_SYSTEM() ENTER_BOARD(NO_BOARD)
#define ENTER_ANY(device) /* the board, or a part of it */                                         \
    ENTER_BOARD(board_of(device));                                                                 \
    struct board *b = &state->boards[device->board]
#define ENTER(device)                                                                              \
    ENTER_ANY(device);                                                                             \
    if (device->mig >= 0) return NOT_SUPPORTED
#define NEED_ROOT()                                                                                \
    if (!is_root()) return NO_PERMISSION

static int is_root(void)
{
    const char *own = getenv("FAKE_NVML_ROOT");
    if (!getenv("WATTLAW_FAKE_NVML") && geteuid() == 0) return 1;
    return state->header.root || (own && !strcmp(own, "1"));
}

static int text(char *target, unsigned size, const char *source)
{
    if (strlen(source) >= size) return INSUFFICIENT_SIZE;
    strcpy(target, source);
    return SUCCESS;
}

/* ---- library ---- */
static void unmap(void)
{
    munmap(state, sizeof *state);
    state = NULL;
    close(state_fd); /* releases the file's lock */
    state_fd = -1;
}

static int map(void)
{
    const char *path = getenv("WATTLAW_FAKE_NVML");
    int fd = open(path ? path : MACHINE, O_RDWR | O_CLOEXEC);
    if (fd < 0) return DRIVER_NOT_LOADED;
    struct stat info;
    void *found = MAP_FAILED;
    if (!fstat(fd, &info) && info.st_size == (off_t)sizeof *state)
        found = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    struct header *header = found;
    if (found == MAP_FAILED || header->magic != MAGIC || header->header_size != sizeof *header ||
        header->board_size != sizeof(struct board)) {
        if (found != MAP_FAILED) munmap(found, sizeof *state);
        close(fd);
        return LIB_RM_VERSION_MISMATCH;
    }
    for (int i = 0; i < MAX_BOARDS; i++)
        for (int m = -1; m < MAX_MIG; m++) handles[i][1 + m] = (struct handle){i, m};
    state = found;
    state_fd = fd;
    return SUCCESS;
}

static int start(const char *name)
{
    pthread_mutex_lock(&mutex);
    int code = state ? SUCCESS : map();
    pthread_mutex_unlock(&mutex);
    if (code != SUCCESS) return code;
    int held = 0;
    code = enter(name, NO_BOARD, &held);
    if (!held) lock();
    if (code == SUCCESS) users++;
    if (!users && state) unmap();
    unlock();
    return code;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return start(__func__); }
int nvmlInit_v2(void) { return start(__func__); }

int nvmlShutdown(void)
{
    ENTER_SYSTEM();
    if (--users == 0) unmap();
    return SUCCESS;
}

const char *nvmlErrorString(int code)
{
    switch (code) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *out, unsigned size)
{
    ENTER_SYSTEM();
    return text(out, size, "580.00.fake");
}

int nvmlSystemGetCudaDriverVersion_v2(int *out) /* W&B's monitor asks for it */
{
    ENTER_SYSTEM();
    *out = 12040;
    return SUCCESS;
}

int nvmlSystemGetNVMLVersion(char *out, unsigned size)
{
    ENTER_SYSTEM();
    return text(out, size, "13.580.00.fake");
}

/* ---- which board ---- */
int nvmlDeviceGetCount_v2(unsigned *out)
{
    ENTER_SYSTEM();
    *out = (unsigned)state->header.board_count;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *out)
{
    lock();
    int place = index < MAX_BOARDS && state ? state->header.order[index] : BAD_HANDLE;
    unlock();
    ENTER_BOARD(place);
    if (index >= (unsigned)state->header.board_count) return INVALID_ARGUMENT;
    *out = &handles[place][0];
    return SUCCESS;
}

static Device by_uuid(const char *uuid)
{
    for (int i = 0; i < state->header.board_count; i++) {
        struct board *b = &state->boards[i];
        if (!strcmp(b->uuid, uuid)) return &handles[i][0];
        for (int m = 0; b->mig_mode == 1 && m < b->mig_count; m++)
            if (!strcmp(b->mig_uuid[m], uuid)) return &handles[i][1 + m];
    }
    return NULL;
}

static int bus_place(const char *bus_id, unsigned place[3])
{
    return sscanf(bus_id, "%x:%x:%x", &place[0], &place[1], &place[2]) == 3;
}

static Device by_bus_id(const char *bus_id)
{
    unsigned wanted[3], place[3];
    for (int i = 0; bus_place(bus_id, wanted) && i < state->header.board_count; i++)
        if (bus_place(state->boards[i].bus_id, place) && !memcmp(wanted, place, sizeof place))
            return &handles[i][0];
    return NULL;
}

static Device find(Device by(const char *), const char *key)
{
    lock();
    Device found = state ? by(key) : NULL;
    unlock();
    return found;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device *out)
{
    Device found = find(by_uuid, uuid);
    ENTER_BOARD(found ? found->board : NO_BOARD);
    *out = found;
    return found ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, Device *out)
{
    Device found = find(by_bus_id, bus_id);
    ENTER_BOARD(found ? found->board : NO_BOARD);
    *out = found;
    return found ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetName(Device d, char *out, unsigned size)
{
    ENTER_ANY(d);
    char name[sizeof b->name + 16];
    snprintf(name, sizeof name, d->mig < 0 ? "%s" : "%s MIG 1g.5gb", b->name);
    return text(out, size, name);
}

int nvmlDeviceGetUUID(Device d, char *out, unsigned size)
{
    ENTER_ANY(d);
    return text(out, size, d->mig < 0 ? b->uuid : b->mig_uuid[d->mig]);
}

int nvmlDeviceGetPciInfo_v3(Device d, struct pci *out)
{
    ENTER(d);
    unsigned place[3] = {0};
    bus_place(b->bus_id, place);
    *out = (struct pci){{0}, place[0], place[1], place[2], 0x20B010DE, 0x144E10DE, {0}};
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", place[0] & 0xffff,
             place[1] & 0xff, place[2] & 0xff);
    return text(out->bus_id, sizeof out->bus_id, b->bus_id);
}

/* ---- one number ---- */
#define GETTER(function, type, expression)                                                         \
    int function(Device d, type *out) { ENTER(d); *out = (type)(expression); return SUCCESS; }

GETTER(nvmlDeviceGetIndex, unsigned, b - state->boards)
GETTER(nvmlDeviceGetMinorNumber, unsigned, b->minor)
GETTER(nvmlDeviceGetArchitecture, unsigned, b->capability >= 90 ? 9 : 7) /* Hopper, Ampere */
GETTER(nvmlDeviceGetPersistenceMode, unsigned, b->persistence)
GETTER(nvmlDeviceGetPowerState, unsigned, b->pstate)
GETTER(nvmlDeviceGetPerformanceState, unsigned, b->pstate)
GETTER(nvmlDeviceGetEnforcedPowerLimit, unsigned, said_enforced_mw(b))
GETTER(nvmlDeviceGetPowerManagementLimit, unsigned, b->limit_mw)
GETTER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, b->limit_default_mw)
GETTER(nvmlDeviceGetVirtualizationMode, unsigned long long, b->virtualization)

int nvmlDeviceGetCudaComputeCapability(Device d, int *major, int *minor)
{
    ENTER(d);
    *major = b->capability / 10;
    *minor = b->capability % 10;
    return SUCCESS;
}

static int is_vgpu(const struct board *b) { return b->virtualization == 2; }

int nvmlDeviceGetPowerUsage(Device d, unsigned *out)
{
    ENTER(d);
    *out = b->average_power ? average_mw(b, now_ns()) : instant_mw(b, now_ns());
    return is_vgpu(b) ? NOT_SUPPORTED : SUCCESS;
}

static unsigned long long reasons(const struct board *b) /* 4: software power cap */
{
    int64_t ns = now_ns();
    return said(b, LIE_REASONS, ns, model_mw(b, ns) > segment_at(b, ns)->enforced_mw ? 0x4 : 0);
}

GETTER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, reasons(b))
GETTER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, reasons(b))
GETTER(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, b ? 0x1ff : 0)
GETTER(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, b ? 0x1ff : 0)

int nvmlDeviceGetTotalEnergyConsumption(Device d, unsigned long long *out)
{
    ENTER(d);
    if (b->counter_mode == COUNTER_ABSENT || is_vgpu(b)) return NOT_SUPPORTED;
    *out = counter_mj(b, now_ns());
    return SUCCESS;
}

int nvmlDeviceGetTemperature(Device d, unsigned sensor, unsigned *out)
{
    ENTER(d);
    *out = temperature(b);
    return sensor ? INVALID_ARGUMENT : SUCCESS;
}

int nvmlDeviceGetTemperatureV(Device d, struct temperature *out)
{
    ENTER(d);
    if (out->version != (1u << 24 | sizeof *out)) return ARGUMENT_VERSION_MISMATCH;
    out->celsius = (int)temperature(b);
    return out->sensor ? INVALID_ARGUMENT : SUCCESS;
}

int nvmlDeviceGetUtilizationRates(Device d, struct utilization *out)
{
    ENTER(d);
    if (b->mig_mode == 1) return NOT_SUPPORTED;
    int64_t ns = now_ns();
    *out = (struct utilization){sm_util(b, ns), mem_util(b, ns)};
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(Device d, struct memory *out)
{
    ENTER(d);
    unsigned long long total = b->memory_total, used = said(b, LIE_MEMORY, now_ns(), b->memory_used);
    *out = (struct memory){total, total - used, used};
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(Device d, struct memory_v2 *out)
{
    ENTER(d);
    if (out->version != (2u << 24 | sizeof *out)) return ARGUMENT_VERSION_MISMATCH;
    unsigned long long total = b->memory_total, used = said(b, LIE_MEMORY, now_ns(), b->memory_used);
    *out = (struct memory_v2){out->version, total, 0, total - used, used};
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(Device d, unsigned type, unsigned *out) /* 0 graphics, 1 SM, 2 memory */
{
    ENTER(d);
    *out = type == 2 ? mem_clock(b) : sm_clock(b);
    return type > 2 ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetMaxClockInfo(Device d, unsigned type, unsigned *out)
{
    ENTER(d);
    *out = (unsigned)(type == 2 ? b->mem_clock_mhz : b->clock_max_mhz);
    return type > 2 ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetViolationStatus(Device d, unsigned policy, struct violation *out) /* 0 power */
{
    ENTER(d);
    int64_t ns = now_ns();
    *out = (struct violation){(unsigned long long)ns / 1000, policy ? 0 : violation_ns(b, ns)};
    return policy > 11 ? INVALID_ARGUMENT : SUCCESS;
}

/* ---- limits and clocks ---- */
int nvmlDeviceGetPowerManagementLimitConstraints(Device d, unsigned *low, unsigned *high)
{
    ENTER(d);
    *low = (unsigned)b->limit_min_mw;
    *high = max_limit_mw(b);
    return SUCCESS;
}

int nvmlDeviceSetPowerManagementLimit(Device d, unsigned mw)
{
    ENTER(d);
    NEED_ROOT();
    if (mw < (unsigned)b->limit_min_mw || mw > (unsigned)b->limit_max_mw) return INVALID_ARGUMENT;
    if (b->setter_mode == SETTER_DOES_NOTHING) return SUCCESS;
    b->limit_before_mw = b->setter_mode == SETTER_IS_LATE ? (int32_t)mw : b->limit_mw;
    b->set_ns = b->setter_mode == SETTER_WORKS ? 0 : now_ns();
    if (b->setter_mode == SETTER_IS_LATE) return SUCCESS;
    b->limit_mw = (int32_t)mw;
    start_segment(b);
    return SUCCESS;
}

int nvmlDeviceSetGpuLockedClocks(Device d, unsigned low, unsigned high)
{
    ENTER(d);
    NEED_ROOT();
    if (low > high || low < (unsigned)b->clock_min_mhz || high > (unsigned)b->clock_max_mhz)
        return INVALID_ARGUMENT;
    b->locked_min_mhz = (int32_t)low;
    b->locked_max_mhz = (int32_t)high;
    return SUCCESS;
}

int nvmlDeviceResetGpuLockedClocks(Device d)
{
    ENTER(d);
    NEED_ROOT();
    b->locked_min_mhz = b->locked_max_mhz = 0;
    return SUCCESS;
}

/* ---- power profiles: of Blackwell and newer ---- */
static struct mask mask_of(uint64_t bits)
{
    return (struct mask){{(unsigned)bits, (unsigned)(bits >> 32)}};
}

#define NEED_PROFILES(got)                                                                         \
    if (!b->profiles) return NOT_SUPPORTED;                                                        \
    if ((got)->version != (1u << 24 | sizeof *(got))) return ARGUMENT_VERSION_MISMATCH

int nvmlDeviceWorkloadPowerProfileGetProfilesInfo(Device d, struct profiles_info *out)
{
    ENTER(d);
    NEED_PROFILES(out);
    out->offered = mask_of(b->profiles);
    for (unsigned i = 0; i < 64; i++)
        if (b->profiles >> i & 1) out->each[i] = (struct profile_info){0x100002c, i, i, {{0}}};
    return SUCCESS;
}

int nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(Device d, struct current_profiles *out)
{
    ENTER(d);
    NEED_PROFILES(out);
    out->offered = mask_of(b->profiles);
    out->requested = mask_of(b->requested_profiles);
    out->enforced = mask_of(b->requested_profiles & ~b->refused_profiles);
    return SUCCESS;
}

static int change_profiles(Device d, struct requested_profiles *in, int sets)
{
    struct board *b = &state->boards[d->board];
    uint64_t bits = in->requested.words[0] | (uint64_t)in->requested.words[1] << 32;
    if (bits & ~b->profiles) return INVALID_ARGUMENT;
    b->requested_profiles = sets ? b->requested_profiles | bits : b->requested_profiles & ~bits;
    return SUCCESS;
}

int nvmlDeviceWorkloadPowerProfileSetRequestedProfiles(Device d, struct requested_profiles *in)
{
    ENTER(d);
    NEED_ROOT();
    NEED_PROFILES(in);
    return change_profiles(d, in, 1);
}

int nvmlDeviceWorkloadPowerProfileClearRequestedProfiles(Device d, struct requested_profiles *in)
{
    ENTER(d);
    NEED_ROOT();
    NEED_PROFILES(in);
    return change_profiles(d, in, 0);
}

int nvmlDeviceGetSupportedMemoryClocks(Device d, unsigned *count, unsigned *out)
{
    ENTER(d);
    unsigned room = *count;
    *count = 1;
    if (!out || room < 1) return INSUFFICIENT_SIZE;
    out[0] = (unsigned)b->mem_clock_mhz;
    return SUCCESS;
}

int nvmlDeviceGetSupportedGraphicsClocks(Device d, unsigned memory, unsigned *count, unsigned *out)
{
    ENTER(d);
    if (memory != (unsigned)b->mem_clock_mhz) return NOT_FOUND;
    unsigned room = *count, step = (unsigned)b->clock_step_mhz;
    *count = (unsigned)(b->clock_max_mhz - b->clock_min_mhz) / step + 1;
    if (!out || room < *count) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; i++) out[i] = (unsigned)b->clock_max_mhz - i * step;
    return SUCCESS;
}

/* ---- fields and buffers ---- */
static unsigned field(const struct board *b, struct field *f, int64_t ns)
{
    f->timestamp_us = (int64_t)said(b, LIE_SAMPLE_TIME, ns, (unsigned long long)ns / 1000);
    f->latency_us = 0;
    f->type = TYPE_UINT;
    f->value.ull = 0;
    if (f->scope > (b->module_mw || b->module_repeats ? 1 : 0)) return NOT_SUPPORTED;
    if (f->scope && f->id != 185 && f->id != 186) return NOT_SUPPORTED;
    if (is_vgpu(b) && (f->id == 83 || f->id == 185 || f->id == 186)) return NOT_SUPPORTED;
    unsigned more_mw = f->scope ? (unsigned)b->module_mw : 0;
    switch (f->id) {
    case 74:
        f->type = TYPE_ULL;
        f->value.ull = violation_ns(b, ns);
        return SUCCESS;
    case 83:
        if (b->counter_mode == COUNTER_ABSENT) return NOT_SUPPORTED;
        f->type = TYPE_ULL;
        f->timestamp_us = (int64_t)said(
            b, LIE_SAMPLE_TIME, ns, (unsigned long long)grid_ns(ns, b->refresh_ms) / 1000);
        f->value.ull = counter_mj(b, ns);
        return SUCCESS;
    case 185: f->value.ui = average_mw(b, ns) + more_mw; return b->average_power ? SUCCESS : NOT_SUPPORTED;
    case 186: f->value.ui = instant_mw(b, ns) + more_mw; return b->instant_power ? SUCCESS : NOT_SUPPORTED;
    case 187: f->value.ui = (unsigned)b->limit_min_mw; return SUCCESS;
    case 188: f->value.ui = max_limit_mw(b); return SUCCESS;
    case 189: f->value.ui = (unsigned)b->limit_default_mw; return SUCCESS;
    case 190: f->value.ui = said_enforced_mw(b); return SUCCESS;
    case 192: f->value.ui = (unsigned)b->limit_mw; return SUCCESS;
    default: return NOT_SUPPORTED;
    }
}

int nvmlDeviceGetFieldValues(Device d, int count, struct field *fields)
{
    ENTER(d);
    if (count <= 0) return INVALID_ARGUMENT;
    int64_t ns = now_ns();
    for (int i = 0; i < count; i++) fields[i].result = field(b, &fields[i], ns);
    return SUCCESS;
}

static unsigned sampled(const struct board *b, unsigned type, int64_t ns)
{
    switch (type) {
    case 0: return instant_mw(b, ns);
    case 1: return sm_util(b, ns);
    case 2: return mem_util(b, ns);
    case 5: return sm_clock(b);
    default: return mem_clock(b);
    }
}

/* Called without room for samples it says how long the buffer is, as the real one does. */
int nvmlDeviceGetSamples(Device d, unsigned type, unsigned long long last_seen_us,
                         unsigned *value_type, unsigned *count, struct sample *out)
{
    ENTER(d);
    if (!b->buffers || (!type && is_vgpu(b)) || (type > 2 && type != 5 && type != 6)) return NOT_SUPPORTED;
    *value_type = TYPE_UINT;
    unsigned room = out ? *count : 0;
    *count = out ? 0 : (unsigned)b->buffer_length;
    int64_t period_ns = b->buffer_period_ms * 1000000LL;
    int64_t newest = grid_ns(now_ns(), b->buffer_period_ms);
    int64_t ns = newest - (b->buffer_length - 1) * period_ns;
    for (; ns <= newest && *count < room; ns += period_ns) {
        unsigned long long us = said(b, LIE_SAMPLE_TIME, ns, (unsigned long long)ns / 1000);
        if (ns < state->header.boot_ns || us <= last_seen_us) continue;
        out[*count].timestamp = us;
        out[*count].value = (union value){.ull = 0};
        out[(*count)++].value.ui = sampled(b, type, ns);
    }
    return *count ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device d, unsigned *count, void *out)
{
    ENTER(d);
    (void)b, (void)out;
    *count = 0;
    return SUCCESS;
}

/* ---- MIG ---- */
int nvmlDeviceGetMigMode(Device d, unsigned *current, unsigned *pending) /* mig_mode -1: cannot */
{
    ENTER(d);
    *current = *pending = b->mig_mode == 1;
    return b->mig_mode < 0 ? NOT_SUPPORTED : SUCCESS;
}

GETTER(nvmlDeviceGetMaxMigDeviceCount, unsigned, b->mig_mode == 1 ? 7 : 0)

int nvmlDeviceGetMigDeviceHandleByIndex(Device d, unsigned index, Device *out)
{
    ENTER(d);
    if (b->mig_mode < 0) return NOT_SUPPORTED;
    if (b->mig_mode == 0 || index >= (unsigned)b->mig_count) return NOT_FOUND;
    *out = &handles[d->board][1 + index];
    return SUCCESS;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device d, Device *out)
{
    ENTER_ANY(d);
    (void)b;
    *out = &handles[d->board][0];
    return d->mig < 0 ? INVALID_ARGUMENT : SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(Device d, unsigned *out)
{
    ENTER_ANY(d);
    (void)b;
    *out = 7 + (unsigned)d->mig;
    return d->mig < 0 ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceIsMigDeviceHandle(Device d, unsigned *out)
{
    ENTER_ANY(d);
    (void)b;
    *out = d->mig >= 0;
    return SUCCESS;
}
