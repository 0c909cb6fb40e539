/* The few calls of NVML that the meter makes, with the ABI of libnvidia-ml.so.1, answering from a script.
 *
 * KADENCE_NVML_ENERGY, KADENCE_NVML_POWER: comma-separated answers, one a call, the last one repeated; a number, or
 * "unsupported" (3) or "lost" (15), NVML's error codes. Unset: not supported. KADENCE_NVML_INIT: code of nvmlInit_v2.
 * KADENCE_NVML_MIG: 1 when the board is in MIG mode. KADENCE_NVML_UUID: the UUID of the second board.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { int index; } board;
static board boards[2] = {{0}, {1}};
static int initialised = 0, energy_calls = 0, power_calls = 0;

static int answer(const char *variable, int call, unsigned long long *value) {
  const char *script = getenv(variable);
  if (!script) return 3;
  for (const char *comma; call > 0 && (comma = strchr(script, ',')); call--) script = comma + 1;
  if (!strncmp(script, "unsupported", 11)) return 3;
  if (!strncmp(script, "lost", 4)) return 15;
  *value = strtoull(script, NULL, 10);
  return 0;
}

int nvmlInit_v2(void) {
  const char *code = getenv("KADENCE_NVML_INIT");
  if (code) return atoi(code);
  initialised++;
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
  *device = &boards[index];
  return 0;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, board **device) {
  const char *known = getenv("KADENCE_NVML_UUID");
  if (!known || strcmp(known, uuid)) return 6;
  *device = &boards[1];
  return 0;
}
int nvmlDeviceGetMigMode(board *device, unsigned int *current, unsigned int *pending) {
  const char *mode = getenv("KADENCE_NVML_MIG");
  if (!mode) return 3;
  *current = *pending = (unsigned int)atoi(mode);
  return 0;
}
int nvmlDeviceGetTotalEnergyConsumption(board *device, unsigned long long *millijoules) {
  int code = answer("KADENCE_NVML_ENERGY", energy_calls++, millijoules);
  if (!code) *millijoules += 1000000ull * (unsigned long long)device->index; /* the second board is told apart */
  return code;
}
int nvmlDeviceGetPowerUsage(board *device, unsigned int *milliwatts) {
  unsigned long long value = 0;
  int code = answer("KADENCE_NVML_POWER", power_calls++, &value);
  *milliwatts = (unsigned int)value;
  return code;
}
