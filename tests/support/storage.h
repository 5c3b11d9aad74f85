/* storage.h - the rows of AMP_STORAGE_LIST by number: storages[SPLIT] and the like. */

#ifndef TEST_STORAGE_H
#define TEST_STORAGE_H

typedef enum storage_row {
    FP32, FP32_BF16, FP32_8BIT, SPLIT, SPLIT_BF16, SPLIT_8BIT, SR, SR_BF16, SR_8BIT, STORAGES
} storage_row;

#define STORAGE_ROW(name, master, moments) {AMP_FORMAT_##master, AMP_FORMAT_##moments},
static const amp_storage storages[] = {AMP_STORAGE_LIST(STORAGE_ROW)};

#endif
