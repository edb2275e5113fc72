/* A fake libamd_smi.so for tests: every value is a small text file that a test may change.
 *
 * WATTLAW_FAKE_AMDSMI names a folder with a folder for each GPU, by PCI bus id. A value without a
 * file is the library's "not available". A file status.FUNCTION has the code that a function
 * returns. Signatures and structures are those of amdsmi.h of ROCm 7.0.2, as its Python binding
 * states them; the functions that are not here are stubs that __init__.py makes (NOT_SUPPORTED). */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 2, INIT_ERROR = 18 };
enum { NOT_FOUND = 31, NOT_INIT = 32, DRIVER_NOT_LOADED = 34 };
enum { MAX_GPUS = 32, TEXT = 256 };

typedef struct { char path[4096]; unsigned domain, bus, device, function; } Gpu;
typedef union { uint64_t as_uint; } Bdf;
static Gpu gpus[MAX_GPUS];
static unsigned count;
static int users;

static int text(const Gpu *gpu, const char *name, char *out) {
    char path[5000];
    snprintf(path, sizeof path, "%s/%s", gpu->path, name);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    int is_read = fgets(out, TEXT, file) != NULL;
    fclose(file);
    return is_read;
}

static uint64_t value(const Gpu *gpu, const char *name, uint64_t missing) {
    char found[TEXT];
    return text(gpu, name, found) ? strtoull(found, NULL, 10) : missing;
}

/* Return the code that a test has set for a function, else whether the GPU is still there. */
static int status(const Gpu *gpu, const char *function) {
    char name[128];
    if (!users) return NOT_INIT;
    snprintf(name, sizeof name, "status.%s", function);
    int code = (int)value(gpu, name, SUCCESS);
    if (code) return code;
    return access(gpu->path, F_OK) ? NOT_FOUND : SUCCESS;
}
#define CHECK(gpu) do { int code = status(gpu, __func__); if (code) return code; } while (0)

int amdsmi_init(uint64_t flags) {
    (void)flags;
    const char *root = getenv("WATTLAW_FAKE_AMDSMI");
    struct dirent **entries;
    if (!root || !*root) return DRIVER_NOT_LOADED;
    int found = scandir(root, &entries, NULL, alphasort);
    if (found < 0) return INIT_ERROR;
    count = 0;
    for (int i = 0; i < found; i++) {
        Gpu gpu;
        if (count < MAX_GPUS && sscanf(entries[i]->d_name, "%x:%x:%x.%x", &gpu.domain, &gpu.bus,
                                       &gpu.device, &gpu.function) == 4) {
            snprintf(gpu.path, sizeof gpu.path, "%s/%s", root, entries[i]->d_name);
            gpus[count++] = gpu;
        }
        free(entries[i]);
    }
    free(entries);
    users++;
    return SUCCESS;
}

int amdsmi_shut_down(void) { return users ? (users--, SUCCESS) : NOT_INIT; }

void amdsmi_free_name_value_pairs(void *pairs) { (void)pairs; }

int amdsmi_get_socket_handles(uint32_t *length, void **handles) {
    if (!users) return NOT_INIT;
    for (uint32_t i = 0; handles && i < count; i++) handles[i] = &gpus[i];
    *length = count;
    return SUCCESS;
}

int amdsmi_get_processor_handles(void *socket, uint32_t *length, void **handles) {
    if (!users) return NOT_INIT;
    if (handles) *handles = socket;
    *length = 1;
    return SUCCESS;
}

int amdsmi_get_gpu_device_bdf(Gpu *gpu, Bdf *bdf) {
    if (!users) return NOT_INIT;
    bdf->as_uint = gpu->function | gpu->device << 3 | gpu->bus << 8 | (uint64_t)gpu->domain << 16;
    return SUCCESS;
}

int amdsmi_get_energy_count(Gpu *gpu, uint64_t *energy, float *resolution, uint64_t *timestamp) {
    CHECK(gpu);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    *resolution = 15.3f;
    uint64_t watts = value(gpu, "constant_w", 0); /* it counts by itself */
    double joules = (double)watts * ((double)now.tv_sec + (double)now.tv_nsec * 1e-9);
    *energy = watts ? (uint64_t)(joules / (*resolution * 1e-6))
                    : value(gpu, "energy_accumulator", UINT64_MAX);
    *timestamp = 0;
    return SUCCESS;
}
