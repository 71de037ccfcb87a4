SELECT customer_id, ordered_on, article
FROM orders
WHERE ordered_on >= :period_start AND ordered_on < :period_end
