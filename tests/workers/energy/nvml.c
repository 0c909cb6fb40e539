/* The calls of NVML that the meter makes, with the ABI of libnvidia-ml.so.1, answering from scripts.
 *
 * A script is an environment variable: comma-separated answers, one a call, the last one repeated. An answer is a number,
 * "unsupported" (3), "lost" (15), NVML's error codes, or "hang": no answer until kadence_reset. Unset: not supported.
 *   KADENCE_NVML_ENERGY, _POWER, _UTILISATION, _MIG   what the call of that name gives
 *   KADENCE_NVML_INIT        codes of nvmlInit (unset: 0)
 *   KADENCE_NVML_PROCESSES, KADENCE_NVML_MPS   numbers of compute processes; pids count up from 100
 *   KADENCE_NVML_SWAP        set: boards change places whenever the driver is loaded again
 * Two boards, GPU-first and GPU-second; the second one's energy is 1000 times the script's.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ENERGY, POWER, UTILISATION, MIG, INIT, PROCESSES, MPS, SCRIPTS };
static const char *variables[SCRIPTS] = {"KADENCE_NVML_ENERGY", "KADENCE_NVML_POWER", "KADENCE_NVML_UTILISATION",
                                         "KADENCE_NVML_MIG", "KADENCE_NVML_INIT", "KADENCE_NVML_PROCESSES",
                                         "KADENCE_NVML_MPS"};
typedef struct { int index; } board;
typedef struct { unsigned int pid; unsigned long long memory; unsigned int gpu_instance, compute_instance; } process;
static board boards[2] = {{0}, {1}};
static const char *uuids[2] = {"GPU-first", "GPU-second"};
static int calls[SCRIPTS];
static volatile int resets = 0;
static int initialised = 0, loads = 0;

void kadence_reset(void) {
  memset(calls, 0, sizeof calls);
  initialised = loads = 0;
  resets++;
}

static int answer(int script, unsigned long long *value) {
  const char *at = getenv(variables[script]);
  int call = calls[script]++, before = resets;
  if (!at) return 3;
  for (const char *comma; call > 0 && (comma = strchr(at, ',')); call--) at = comma + 1;
  if (!strncmp(at, "unsupported", 11)) return 3;
  if (!strncmp(at, "lost", 4)) return 15;
  if (!strncmp(at, "hang", 4)) {
    while (resets == before) usleep(2000);
    return 15;
  }
  *value = strtoull(at, NULL, 10);
  return 0;
}

int nvmlInit_v2(void) {
  unsigned long long code = 0;
  answer(INIT, &code);
  if (code) return (int)code;
  initialised++;
  loads++;
  return 0;
}
int nvmlInitWithFlags(unsigned int flags) { return nvmlInit_v2(); }
int nvmlShutdown(void) {
  if (!initialised) return 1;
  initialised--;
  return 0;
}
const char *nvmlErrorString(int code) {
  return code == 3 ? "Not Supported" : code == 15 ? "GPU is lost" : code == 9 ? "Driver Not Loaded" : "Unknown Error";
}
int nvmlDeviceGetCount_v2(unsigned int *count) {
  if (!initialised) return 1;
  *count = 2;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, board **device) {
  if (!initialised) return 1;
  if (index > 1) return 2;
  *device = &boards[getenv("KADENCE_NVML_SWAP") && loads > 1 ? 1 - index : index];
  return 0;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, board **device) {
  if (!initialised) return 1;
  for (int i = 0; i < 2; i++) {
    if (strcmp(uuids[i], uuid)) continue;
    *device = &boards[i];
    return 0;
  }
  return 6;
}
int nvmlDeviceGetUUID(board *device, char *uuid, unsigned int length) {
  snprintf(uuid, length, "%s", uuids[device->index]);
  return 0;
}
int nvmlDeviceGetMigMode(board *device, unsigned int *current, unsigned int *pending) {
  unsigned long long value = 0;
  int code = answer(MIG, &value);
  *current = *pending = (unsigned int)value;
  return code;
}
int nvmlDeviceGetTotalEnergyConsumption(board *device, unsigned long long *millijoules) {
  if (!initialised) return 1;
  int code = answer(ENERGY, millijoules);
  if (!code && device->index) *millijoules *= 1000;
  return code;
}
int nvmlDeviceGetPowerUsage(board *device, unsigned int *milliwatts) {
  if (!initialised) return 1;
  unsigned long long value = 0;
  int code = answer(POWER, &value);
  *milliwatts = (unsigned int)value;
  return code;
}
int nvmlDeviceGetUtilizationRates(board *device, unsigned int *percent) {
  unsigned long long value = 0;
  int code = answer(UTILISATION, &value);
  percent[0] = (unsigned int)value;
  percent[1] = 0;
  return code;
}

/* Asked twice, as by nvidia-ml-py: without room, for the number (7: insufficient size), then for the processes. */
static int processes(int script, unsigned int *count, process *found) {
  unsigned long long running = 0;
  if (found) calls[script]--;
  int code = answer(script, &running);
  if (code) return code;
  if (!found && running) {
    *count = (unsigned int)running;
    return 7;
  }
  for (unsigned int i = 0; i < running; i++) found[i] = (process){.pid = 100 + i, .memory = 1 << 30};
  *count = (unsigned int)running;
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(board *device, unsigned int *count, process *found) {
  return processes(PROCESSES, count, found);
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(board *device, unsigned int *count, process *found) {
  return processes(MPS, count, found);
}
