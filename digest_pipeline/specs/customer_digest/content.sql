-- One row per purchase of the period, with the customer's totals up to the period's end.
-- The pipeline asks for a page of customers at a time by filtering on customer_id. That is the
-- window's partition, so both databases apply the filter before they add up.
SELECT customer_id, ordered_on, cds, dollars, total_orders, total_cds, total_dollars
FROM (
    SELECT
        customer_id,
        ordered_on,
        cds,
        CAST(cents AS double precision) / 100 AS dollars,
        COUNT(*) OVER of_customer AS total_orders,
        SUM(cds) OVER of_customer AS total_cds,
        CAST(SUM(cents) OVER of_customer AS double precision) / 100 AS total_dollars
    FROM orders
    WHERE ordered_on < :period_end
    WINDOW of_customer AS (PARTITION BY customer_id)
) AS purchases
WHERE ordered_on >= :period_start
