#!/usr/bin/env bash
# Train and judge the drafters that come with the project: scripts/train_shipped_drafters.sh [FOLDER]
# An interrupted run goes on where it was when the same command is given again. Weights are equal to the bit only on one
# machine type with one number of threads and one set of versions.
set -euo pipefail

MODEL=smollm2-135m-instruct
SEED=0
ANSWERS=2430
EAGLE_ANSWERS=3645 EAGLE_SAMPLES=2 EAGLE_STEPS=2500 EAGLE_RATE=2e-3
MEDUSA_STEPS=600 MEDUSA_RATE=2e-3
DRAFT_STEPS=900 DRAFT_RATE=1e-3
# Only a limit: the steps above say how long it goes on.
BUDGET=12h

out=${1:-drafters}
kadence=$(dirname "$0")/../.venv/bin/kadence
export OMP_WAIT_POLICY=PASSIVE

train() {  # KIND ANSWERS SAMPLES STEPS RATE
  "$kadence" train "$1" --model "$MODEL" --out "$out/$1" --answers "$2" --samples "$3" --steps "$4" \
    --learning-rate "$5" --seed "$SEED" --budget "$BUDGET"
}

train eagle "$EAGLE_ANSWERS" "$EAGLE_SAMPLES" "$EAGLE_STEPS" "$EAGLE_RATE"
train medusa "$ANSWERS" 1 "$MEDUSA_STEPS" "$MEDUSA_RATE"
train draft "$ANSWERS" 1 "$DRAFT_STEPS" "$DRAFT_RATE"
# Steps of the engine are timed here: leave the machine idle meanwhile.
"$kadence" train evaluate "$out/eagle" --model "$MODEL" --answers "$EAGLE_ANSWERS" --samples "$EAGLE_SAMPLES" --seed "$SEED"
for kind in medusa draft; do
  "$kadence" train evaluate "$out/$kind" --model "$MODEL" --answers "$ANSWERS" --seed "$SEED"
done

shipped=workers/drafters/$MODEL
echo "to ship them, copy drafter.json, model.safetensors and README.md of each into $shipped/KIND/,"
echo "and write the best one, as --drafter takes it without a folder, into $shipped/best.txt"
